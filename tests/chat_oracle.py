#!/usr/bin/env python3
"""Render chat templates with Jinja itself, set up as transformers does.

  chat_oracle.py CASES.json   [{"template", "bos", "eos", "messages", "thinking"}, ...] -> [text or null, ...]

null where the template refuses the conversation.
"""
import json, sys
from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment


def raise_exception(message):
    raise TemplateError(message)


env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
env.globals["raise_exception"] = raise_exception
out = []
for case in json.load(open(sys.argv[1])):
    extra = {} if case["thinking"] else {"enable_thinking": False}
    try:
        out.append(env.from_string(case["template"]).render(
            messages=case["messages"], tools=None, documents=None, add_generation_prompt=True,
            bos_token=case["bos"], eos_token=case["eos"], **extra))
    except TemplateError:
        out.append(None)
json.dump(out, sys.stdout)
