"""Comments in the text of a v1alpha1 Template, and beside it, go with their fields."""

from __future__ import annotations

import orjson

from tink.convert.documents import read, to_yaml
from tink.convert.run import convert_documents

COMMENTED = """\
apiVersion: tinkerbell.org/v1alpha1
kind: Template
metadata: {name: t}
spec:
  # above
  data: | # beside
    # first
    version: "0.1" # v
    tasks:
      # the task
      - name: t
        volumes:
          - /dev:/dev # devs
          - bad # none
          - /a:/b # second
        actions:
          # the action
          - name: x # xn
            image: i # it takes {{ .x }}
            {{- /* only the template's */}}
            pid: host # its processes
            on-failure: [z] # gone
            environment:
              # above A
              A: "#no" # beside A
              B: | # beside B
                # text
            command:
              - a
              - b # cmd
          {{ $x := 1 }}
          - name: z
            image: j
            namespaces:
              network: host # net
    # end
# bottom
"""


def test_comments_in_the_text_follow_their_fields() -> None:
    result = convert_documents(read("in.yaml", COMMENTED.encode()))
    assert "".join(to_yaml(result.converted)) == (
        """\
---
apiVersion: tinkerbell.org/v1alpha2
kind: Template
metadata:
  name: t
# above
# first
# v
# the task
spec: # beside
  actions:
    # the action
    # gone
    - name: x # xn
      image: i # it takes {{ .x }}
      args:
        - a
        - b # cmd
      env:
        # above A
        A: "#no" # beside A
        B: | # beside B
          # text
      pidNamespace: host # its processes
    - name: z
      image: j
      networkNamespace: host # net
  volumes: # none
    - /dev:/dev # devs
    - /a:/b # second
# bottom
# end
"""
    )


def test_comments_of_a_text_that_comes_as_json_are_kept_too() -> None:
    """From a cluster, or from `kubectl get -o json`, where the text is the only place that has any."""
    data = "# one\ntasks:\n- name: t\n  actions:\n  - name: a\n    image: i\n    timeout: 5 # five\n"
    kind = {"apiVersion": "tinkerbell.org/v1alpha1", "kind": "Template"}
    source = orjson.dumps({**kind, "metadata": {"name": "t"}, "spec": {"data": data}})
    (made,) = to_yaml(convert_documents(read("in.json", source)).converted)
    assert ("# one\nspec:" in made, "timeout: 5 # five" in made) == (True, True)
