#!/usr/bin/env python3
"""The kernels of plans as functions of the emulator: from the sources that stand in plans made with nvrtc.c (image.h), each
source once, writes OUT_0.cpp ... OUT_<N-1>.cpp of about equal size, with a table of the kernels in each.

    plan_kernels.py OUT N PLAN...

A kernel is its source to the letter in a namespace of its own, but for two things: arch.cuh and what it includes stand
once in each file, and its function is called after the source's hash too, since plans may differ in what they call the same.
"""
import re
import sys

IMAGE = re.compile(rb'JLLM-SIMT ([0-9a-f]{16}) (\d{11})\n')
SHARED = ('arch.cuh', 'plan_step.cuh')


def sources(plans):
    """{hash: source}"""
    found = {}
    for path in plans:
        with open(path, 'rb') as file:
            data = file.read()
        for match in IMAGE.finditer(data):
            found[match[1].decode()] = data[match.end():match.end() + int(match[2])].decode()
    return found


def split(source):
    """(lines of the files in SHARED, the other lines)"""
    parts = ([], [])
    shared = False
    for line in source.splitlines():
        if match := re.match(r'#line \d+ "(.*)"', line):
            shared = match[1] in SHARED
        parts[not shared].append(line)
    return parts


def threads_max(source):
    """The first argument of __launch_bounds__, as an expression."""
    at = source.find('__launch_bounds__(')
    if at < 0:
        return '1024'
    depth, first = 0, source.index('(', at)
    for end in range(first, len(source)):
        depth += {'(': 1, ')': -1}.get(source[end], 0)
        if depth == 0 or (depth == 1 and source[end] == ','):
            return source[first + 1:end]
    sys.exit('__launch_bounds__ without an end')


def instance(key, source):
    """(name, text, row of the table)"""
    name = re.search(r'(?m)^#define JT_NAME (\w+)$', source)[1]
    unique = f'{name}_{key}'
    lines = [f'#define JT_NAME {unique}' if line == f'#define JT_NAME {name}' else line for line in split(source)[1]]
    macros = sorted({m[1] for line in lines if (m := re.match(r'\s*#\s*define\s+(\w+)', line))})
    text = [f'namespace {unique}_ {{', *lines, f'constexpr unsigned threads_max = {threads_max(source)};', '}',
            *(f'#undef {m}' for m in macros)]
    return '\n'.join(text), (f'    {{0x{key}, "{name}", simt_call<&{unique}_::{unique}>, simt_count(&{unique}_::{unique}), '
                             f'{unique}_::threads_max}},')


def main(out, n, *plans):
    found, n = sorted(sources(plans).items(), key=lambda item: (item[1], item[0])), int(n)
    if not found:
        sys.exit('no sources in these plans: they were not made with the emulator\'s NVRTC')
    head = '\n'.join(['// Made by plan_kernels.py.', '#define JT_NAME none', *split(found[0][1])[0], '#undef JT_NAME',
                      '#line 1 "head"', '#include "plan_kernels.h"', '#include "simt_call.h"'])
    for i in range(n):
        made = [instance(*item) for item in found[i::n]]     # neighbours cost about the same
        with open(f'{out}_{i}.cpp', 'w') as file:
            file.write('\n'.join([head, *(text for text, _ in made), '#line 1 "table"', 'extern "C" const simt_plan_kernel',
                                  f'    __attribute__((visibility("default"))) simt_plan_kernels_{i}[] = {{', *(row for _, row in made),
                                  '    {0, nullptr, nullptr, 0, 0},', '};', '']))


if __name__ == '__main__':
    main(*sys.argv[1:])
