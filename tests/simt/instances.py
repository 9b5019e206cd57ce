#!/usr/bin/env python3
"""Kernels of templates/cuda as functions of a test: writes one C++ file with an instance of a template for each
line of cuda_kernels.list that names it, and a table of them (struct simt_kernel of launch.h).

    instances.py TEMPLATES LIST GROUP OUT [few]      writes OUT and, for ninja, OUT.d

A line of the list: group template name=value name=value ...; a value with commas stands for each of its parts in turn.
Where `few` is asked for, lines without a star (8*) are dropped, and values beside one with a star. Where the templates have
a contract it completes keys and parameters, and says how the kernel is launched (geometry.lua). An instance is the
template's text in a namespace of its own, with the text of own headers in place of their #include lines, as the
compiler makes it; macros that the text defines end with it.
"""
import itertools
import os
import re
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sources = set()
SHARED = ('arch.cuh', 'plan_step.cuh')   # included once, before all instances


def inline(folder, name, seen):
    path, out = os.path.join(folder, name), []
    sources.add(path)
    out.append(f'#line 1 "{path}"')
    with open(path) as file:
        for number, line in enumerate(file, 1):
            match = re.match(r'\s*#\s*include\s+"([^"]+)"', line)
            if re.match(r'\s*#\s*pragma\s+once', line) or (match and match[1] in SHARED):
                out.append('')
            elif match:
                if match[1] not in seen:
                    seen.add(match[1])
                    out += inline(folder, match[1], seen)
                out.append(f'#line {number + 1} "{path}"')
            else:
                out.append(line.rstrip('\n'))
    return out


def keys_of(words, few):
    names, choices = [], []
    for word in words:
        name, values = word.split('=')
        values = values.split(',')
        if few and any(v.endswith('*') for v in values):
            values = [v for v in values if v.endswith('*')]
        names.append(name)
        choices.append([v.rstrip('*') for v in values])
    return [dict(zip(names, combination)) for combination in itertools.product(*choices)]


def define(name, value):
    if re.match(r'-?[0-9.]', value):
        return f'#define JT_{name.upper()} {value}' + ('f' if '.' in value or 'e' in value else '')
    return f'#define JT_{name.upper()}_{value.upper()} 1\n#define JT_{name.upper()} {value}'


def instance(folder, template, source, keys, number):
    text = inline(folder, source, set())
    own = [define(n, v) for n, v in keys.items()]
    macros = sorted({m[1] for line in text + '\n'.join(own).split('\n') if (m := re.match(r'\s*#\s*define\s+(\w+)', line))} | {'JT_NAME'})
    name = f'jt_{template}_{number}'
    return name, '\n'.join([f'namespace {name}_ {{', f'#define JT_NAME {name}'] + own + text + ['}']
                           + [f'#undef {m}' for m in macros])


def launches(folder, wanted):
    """For each (template, keys): (source, keys, grid and scratch); without a contract there is no grid."""
    contract = os.path.join(folder, 'contract.lua')
    if not os.path.exists(contract):
        return [(template + '.cu', keys, '{0, 0, 0, 0, 0}, 0') for template, keys in wanted]
    sources.update((contract, os.path.join(HERE, 'geometry.lua')))
    lines = [' '.join([template, *(f'{n}={v}' for n, v in keys.items())]) for template, keys in wanted]
    p = subprocess.run([os.path.join(HERE, '../../out/simt/geometry'), os.path.join(HERE, 'geometry.lua'), contract], check=True,
                       input='\n'.join(lines), stdout=subprocess.PIPE, text=True)
    answers = []
    for line in p.stdout.splitlines():
        source, x, y, z, block, shared, scratch, keys = line.split('\t')
        answers.append((source, dict(k.split('=') for k in keys.split()), f'{{{x}, {y}, {z}, {block}, {shared}}}, {scratch}'))
    return answers


def entry(name, template, keys, grid):
    pairs = ''.join(f'{{"{n}", "{v}"}}, ' for n, v in keys.items())
    return (f'static const simt_key {name}_keys[] = {{{pairs}{{nullptr, nullptr}}}};',
            f'    {{"{template}", {name}_keys, simt_call<&{name}_::{name}>, simt_count(&{name}_::{name}), {grid}}},')


def main(folder, listing, group, out, few=''):
    lines = ['// Made by instances.py.', '#include "arch.cuh"', '#include "launch.h"', '#include "simt_call.h"', '']
    wanted, tables = [], []
    with open(listing) as file:
        for words in (line.split() for line in file if line.strip() and not line.startswith('#')):
            if words[0] != group:
                continue
            if few == 'few' and not any('*' in word for word in words[2:]):
                continue
            wanted += [(words[1], keys) for keys in keys_of(words[2:], few == 'few')]
    for (template, _), (source, keys, grid) in zip(wanted, launches(folder, wanted)):
        name, text = instance(folder, template, source, keys, f'{group}_{len(tables)}')
        lines.append(text)
        tables.append(entry(name, template, keys, grid))
    lines.append('#line 1 "table"')
    lines += [keys for keys, _ in tables]
    lines.append(f'extern "C" const simt_kernel simt_kernels_{group}[] = {{')
    lines += [row for _, row in tables] + ['    {nullptr, nullptr, nullptr, 0, {0, 0, 0, 0, 0}, 0},', '};', '']
    with open(out, 'w') as file:
        file.write('\n'.join(lines))
    with open(out + '.d', 'w') as file:
        file.write(f'{out}: {" ".join(sorted(sources))}\n')


main(*sys.argv[1:])
