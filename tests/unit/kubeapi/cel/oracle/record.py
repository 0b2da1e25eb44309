"""Record the answers of Kubernetes' own CEL to every case of the corpus.

    python -m tests.record cel

`main.go` beside this file is the oracle: a Go program over k8s.io/apiserver and k8s.io/apiextensions-apiserver
v0.36.3.

A case is [expression, schema of self, value of self, value of oldSelf, answer]; the three in the middle are
places in `schemas` and `values`, -1 for none. In an answer, t is the type, r the result, x the evaluation error,
c the compile errors without their snippets, k the cost, e the estimated costs.
"""

import json
import subprocess
from pathlib import Path

from tests import recordings

CORPUS = Path(__file__).parents[1] / "corpus"
CASES = ("plain", "of-a-schema")
PREFIX = "ERROR: <input>:"


def _question(case, corpus):
    expression, schema, value, old, _ = case
    question = {"e": expression}
    if schema >= 0:
        question["s"] = corpus["schemas"][schema]
    if value >= 0:
        question["d"] = corpus["values"][value]
    if old >= 0:
        question["o"] = corpus["values"][old]
    return json.dumps(question)


def _answer(line):
    given = json.loads(line)
    if "c" in given:
        heads = (text for text in given["c"].split("\n") if not text.startswith(" | "))
        return {"c": [text.removeprefix(PREFIX) for text in heads]}
    answer = {key: given[key] for key in "trxk" if key in given and not (key == "k" and "x" in given)}
    answer["e"] = [given["n"], given["m"]]
    return answer


def record(oracle: Path) -> None:
    """Record the answers of the program built from main.go."""
    corpus = recordings.read(CORPUS)
    cases = [case for subject in CASES for case in corpus[subject]]
    questions = "\n".join(_question(case, corpus) for case in cases)
    lines = subprocess.run([oracle], input=questions, capture_output=True, text=True, check=True).stdout.splitlines()
    for case, line in zip(cases, lines, strict=True):
        case[4] = _answer(line)
    recordings.write(CORPUS, corpus)
