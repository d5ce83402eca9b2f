"""Writes golden.json: every template here, rendered by transformers (5.17) for a few conversations.

    python make.py            # needs transformers and jinja2

The templates are our own, each in the manner of a family of models, but smollm2.jinja, which is SmolLM2's (Apache-2.0).
`strftime_now` is stopped at 26 Jul 2024, as qerl does it.
"""
import datetime
import json
import pathlib

from transformers.utils import chat_template_utils as utils


class Stopped(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2024, 7, 26)


utils.datetime = Stopped
HERE = pathlib.Path(__file__).parent
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
S, U, A = "system", "user", "assistant"
CONVERSATIONS = [
    [(U, "What is 2 + 3?")],
    [(S, "Answer briefly."), (U, "What is 2 + 3?")],
    [(U, "  two blanks, then a line\nand \"quotes\" \\ <b>&amp;</b> \u00e9\u4e2d  ")],
    [(S, ""), (U, "Hi"), (A, "<think>\nA greeting.\n</think>\n\nHello."), (U, "Bye {{ x }} {% y %}")],
    [(U, "one"), (A, "two"), (U, "three"), (A, "four")],
    [(S, "a"), (A, "b"), (U, "c")],
    [(A, "I speak first.")],
]

golden = []
for path in sorted(HERE.glob("*.jinja")):
    source = path.read_text()
    # Compiled as transformers does, with its own sandbox, filters and functions.
    compiled = utils._compile_jinja_template(source)
    for turns in CONVERSATIONS:
        messages = [{"role": role, "content": content} for role, content in turns]
        for generation in (True, False):
            case = {"template": path.name, "messages": messages, "add_generation_prompt": generation}
            try:
                case["text"] = compiled.render(
                    messages=messages, tools=None, documents=None, add_generation_prompt=generation, **TOKENS
                )
            except Exception as error:
                case["error"] = str(error)
            golden.append(case)
with open(HERE / "golden.json", "w") as file:
    json.dump({"tokens": TOKENS, "cases": golden}, file, ensure_ascii=False, indent=1)
    file.write("\n")
print(len(golden), "cases,", sum("error" in case for case in golden), "of them errors")
