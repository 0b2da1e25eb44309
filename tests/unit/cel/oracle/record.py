"""Asks Kubernetes' own CEL for the answers to every case of corpus.json, and writes them into it.

`main.go` beside this file is the oracle: a Go program over k8s.io/apiserver and k8s.io/apiextensions-apiserver
v0.36.3 (with the module requirements of k8s.io/kubernetes v1.36.3). Build it, then:

    python tests/unit/cel/oracle/record.py PATH-TO-ORACLE

A case is [expression, schema of self, value of self, value of oldSelf, answer]; the three in the middle are
places in `schemas` and `values`, -1 for none. In an answer, t is the type, r the result, x the evaluation error,
c the compile errors without their snippets, k the cost, e the estimated costs.
"""

import json
import pathlib
import subprocess
import sys

CORPUS = pathlib.Path(__file__).parent.parent / "corpus.json"
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


def main(oracle):
    corpus = json.loads(CORPUS.read_text())
    questions = "\n".join(_question(case, corpus) for case in corpus["cases"])
    lines = subprocess.run([oracle], input=questions, capture_output=True, text=True, check=True).stdout.splitlines()
    for case, line in zip(corpus["cases"], lines, strict=True):
        case[4] = _answer(line)
    CORPUS.write_text(json.dumps(corpus, ensure_ascii=False, separators=(",", ":")))


if __name__ == "__main__":
    main(sys.argv[1])
