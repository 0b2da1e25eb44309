"""Refusals and warnings of the reviewer about OSIEs, references and Templates."""

import pytest

from tests.support import objects
from tests.unit.webhooks.conftest import hardware, texts, workflow
from tink.api.annotations import MAX_ANNOTATIONS_BYTES, TEMPLATE_TEXT_ANNOTATION, V1ALPHA1_ANNOTATION
from tink.api.mistakes import Site
from tink.kube.client import UnreachableError
from tink.template_process import BusyError
from tink.webhooks.admission import respond
from tink.webhooks.claims import Claims
from tink.webhooks.reviewer import ReviewRequest, Verdict

ODD = [None, [], "x", 7, {}, {"spec": None}, {"spec": []}, {"spec": {"networkInterfaces": ["x"]}}]
ODD += [{"spec": {"networkInterfaces": {"m": value}}} for value in (None, 1, {"dhcp": []}, {"dhcp": {"ip": 7}})]
ODD += [{"spec": {"actions": value}} for value in (None, 7, {}, [None], [{"image": 7}], [{"volumes": "x"}])]
ODD += [{"metadata": value, "spec": {"hardwareRef": 1, "templateRef": {}}} for value in (None, [], {"name": 1})]
ODD += [{"spec": {"ipxe": 7}, "status": 7}, {"spec": {"templateRef": {"name": 3}}, "status": {"state": []}}]


def osie(kernel):
    return objects.osie("o", namespace="d", kernelUrl=kernel)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://127.0.0.1:8080/kernel", "127.0.0.1 is a loopback address"),
        ("http://LOCALHOST/kernel", "localhost is a loopback address"),
        ("https://user:secret@[::ffff:127.0.0.1]/kernel?sig=secret", "::ffff:127.0.0.1 is a loopback address"),
        ("http://169.254.169.254/latest/user-data", "169.254.169.254 is a link-local address"),
        ("http://kernels.example/kernel", ""),
        ("http://192.0.2.1/kernel", ""),
        ("file:///var/lib/tinkedge/osie/kernel", ""),
        ("http://[::1/kernel", ""),
        (7, ""),
    ],
)
async def test_osie_with_a_url_that_no_edge_follows_is_let_in_with_a_warning(world, url, said):
    expected = ()
    if said:
        address = said.split(" ")[0].replace("localhost", "127.0.0.1").replace("::ffff:", "")
        expected = (
            f"spec.kernelUrl: {said}: an edge fetches nothing from there, unless it was started with --allow-upstream "
            f"{address}; a file of the edge's own host is file:///PATH, below its --osie-dir",
        )
    assert await world.review("CREATE", osie(url)) == Verdict(warnings=expected)
    # A warning about an unchanged field is not repeated.
    assert await world.review("UPDATE", osie(url), osie(url)) == Verdict()
    assert await world.review("UPDATE", osie("http://192.0.2.1/k"), osie(url)) == Verdict()
    for odd in ({}, {"spec": []}, {"spec": None}):
        assert await world.review("UPDATE", {**osie(url), **odd}, odd or None) is not None


@pytest.mark.parametrize("odd", ODD)
async def test_odd_objects_are_left_to_the_schema_and_never_fail_a_review(world, odd, caplog):
    for kind in ("Hardware", "OSIE", "Template", "Workflow", "Nonsense", None):
        for operation in ("CREATE", "UPDATE", "DELETE", "CONNECT", None):
            for new, old in ((odd, None), (odd, odd), (None, odd)):
                asked = {"kind": {"kind": kind}, "operation": operation, "object": new, "oldObject": old}
                verdict = await world.reviewer.review(ReviewRequest.read(asked))
                assert verdict.causes == ()
    assert caplog.text == "", "not even a mistake that was caught"


async def test_hardware_of_one_cluster_machine_is_not_taken_by_another(world):
    """Cluster API's provider patches without a resourceVersion, so two of its machines may choose one Hardware."""

    def owned(name, namespace="clusters"):
        found = {"v1alpha1.tinkerbell.org/ownerName": name, "v1alpha1.tinkerbell.org/ownerNamespace": namespace}
        labels = {label: text for label, text in found.items() if text}
        return hardware("h") | {"metadata": {"name": "h", "namespace": "d", "labels": labels}}

    for old, new in (("", "tm1"), ("tm1", "tm1"), ("tm1", "")):
        assert (await world.review("UPDATE", owned(new), owned(old))).causes == ()
    for taken in (owned("tm2"), owned("tm1", "others")):
        (cause,) = (await world.review("UPDATE", taken, owned("tm1"))).causes
        assert cause.field == "metadata.labels[v1alpha1.tinkerbell.org/ownerName]"
        assert cause.message == (
            "the Hardware belongs to TinkerbellMachine clusters/tm1: choose another one, or remove this label first"
        )


# --- references -------------------------------------------------------------------------------------------------------


async def test_deletion_of_a_referenced_object_warns_with_the_first_few_names(world):
    for number in range(5):
        world.store(hardware(f"h{number}", osie="o"))
    verdict = await world.review("DELETE", None, objects.osie("o", namespace="d"))
    assert verdict.warnings == (
        "OSIE d/o is still referred to by Hardware d/h0, Hardware d/h1, Hardware d/h2 and 2 more: they netboot nothing "
        "until there is one of that name again",
    )
    assert (await world.review("DELETE", None, objects.osie("o", namespace="elsewhere"))).warnings == ()


async def test_workflow_that_has_ended_needs_nothing(world):
    world.store(workflow("w", "h", "t", "Running"))
    assert (await world.review("DELETE", None, template())).warnings == (
        "Template d/t is still referred to by Workflow d/w (not ended): those that are not prepared yet wait for one "
        "of that name",
    )
    assert (await world.review("DELETE", None, hardware("h"))).warnings == (
        "Hardware d/h is still referred to by Workflow d/w (not ended): apply it again soon, or what an agent has of "
        "them fails (--hardware-gone-timeout)",
    )
    world.store(workflow("w", "h", "t", "Succeeded"))
    assert (await world.review("DELETE", None, template())).warnings == ()


async def test_workflow_is_let_in_with_a_warning_for_each_part_that_is_missing(world):
    world.store(hardware("h"))
    new = workflow("w", "h", "t")
    assert (await world.review("CREATE", new)).warnings == (
        "spec.templateRef.name: there is no Template d/t yet; the Workflow waits for it",
    )
    assert (await world.review("UPDATE", new, new)).warnings == (), "once is enough"
    world.known, asked = True, world.asked
    assert (await world.review("CREATE", new)).warnings == ()
    assert world.asked == asked, "what the informers know is not asked for"
    world.known = False
    world.api.fail("get", *[UnreachableError("away")] * 2)
    assert (await world.review("CREATE", new)).warnings == (), "what can't be known is not claimed"


async def test_user_data_that_cloud_init_drops_is_warned_about_once(world):
    new = hardware("h")
    new["spec"]["instance"] = {"userdata": "#cloud-config\n- users\n"}
    (warning,) = (await world.review("CREATE", new)).warnings
    assert warning.startswith("spec.instance.userdata: it is YAML, but no mapping of names to values")
    labelled = {**new, "metadata": {**new["metadata"], "labels": {"a": "b"}}}
    assert (await world.review("UPDATE", labelled, new)).warnings == ()


# --- templates --------------------------------------------------------------------------------------------------------


def template(**fields):
    return objects.template({"name": "a", "image": "i", **fields}, namespace="d")


async def test_every_field_that_does_not_parse_is_named_with_line_and_column(world):
    verdict = await world.review("CREATE", template(image="{{ .X", args=["ok", "a\nb {{ nosuch }}"], cmd="{{ .Y }}"))
    assert texts(verdict) == [
        "spec.actions[0].image: is no Go template: line 1, column 5: unclosed action",
        'spec.actions[0].args[1]: is no Go template: line 2, column 5: function "nosuch" not defined',
    ]


AT_LIMIT = "ä" * 65_533
""""KEY=" and a NUL make it 131,071 bytes, one less than Linux takes."""


@pytest.mark.parametrize(
    ("fields", "refused"),
    [
        ({"env": {"KEY": AT_LIMIT + "x"}, "args": ["x" * 131_071], "cmd": "/" * 4095}, []),
        ({"env": {"KEY": AT_LIMIT + "xx"}}, ['spec.actions[0].env["KEY"]: has 131073 bytes']),
        ({"env": {"KEY": AT_LIMIT + "{{.x}}"}, "args": ["x" * 131_072 + "{{.x}}"]}, []),
        ({"env": {"K" * 100: "x" * 131_072}}, [f'spec.actions[0].env["{"K" * 64}..."]: has 131174 bytes']),
        ({"args": ["", "x" * 131_072]}, ["spec.actions[0].args[1]: has 131073 bytes"]),
        ({"cmd": "/" * 4096}, ["spec.actions[0].cmd: has 4097 bytes"]),
        ({"args": ["\0"]}, ["spec.actions[0].args[0]: contains a NUL character"]),
        ({"args": ["x" * 131_000] * 17}, ["spec.actions[0]: has 2227153 bytes of arguments and variables"]),
        ({"args": 5, "env": [], "cmd": {}}, []),
    ],
)
async def test_template_with_more_than_linux_takes_is_rejected_by_field_in_bytes(world, fields, refused):
    causes = texts(await world.review("CREATE", template(**fields)))
    assert len(causes) == len(refused)
    assert all(cause.startswith(expected) for cause, expected in zip(causes, refused, strict=True)), causes


async def test_template_that_exceeds_linux_already_can_be_corrected_in_steps(world):
    old = template(args=["x" * 131_072, "x" * 131_072])
    assert not texts(await world.review("UPDATE", template(args=["x" * 131_072, "x"]), old))
    assert texts(await world.review("UPDATE", template(args=["x", "x", "x" * 131_072]), old))
    shared = template() | {"spec": {"env": {"KEY": AT_LIMIT + "xx"}, "actions": [{"name": "a", "image": "i"}]}}
    assert texts(await world.review("CREATE", shared))[0].startswith('spec.env["KEY"]: has 131073 bytes')


async def test_template_without_a_place_in_the_queue_is_refused_for_now(world):
    async def full(namespace, _template):
        raise BusyError(f"too many of {namespace}")

    world.reviewer.parse = full
    verdict = await world.review("CREATE", template())
    assert verdict == Verdict(busy="too many of d")
    assert respond(verdict, {}) == {
        "allowed": False,
        "status": {
            "status": "Failure",
            "code": 429,
            "reason": "TooManyRequests",
            "message": "too many of d",
            "details": {"retryAfterSeconds": 1},
        },
    }


async def test_internal_error_is_raised_so_the_caller_rejects_or_admits_the_write(world, monkeypatch):
    monkeypatch.setattr(Claims, "conflicts", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        await world.review("CREATE", hardware("a", ("m", "")))


async def test_template_that_did_not_parse_before_can_be_labelled(world):
    bad = template(image="{{")
    assert not texts(await world.review("UPDATE", bad | {"metadata": bad["metadata"] | {"labels": {"a": "b"}}}, bad))
    assert texts(await world.review("UPDATE", template(image="{{ x"), bad))
    assert respond(Verdict(), {}) == {"allowed": True}
    assert respond(Verdict(warnings=("w",)), {}) == {"allowed": True, "warnings": ["w"]}


# --- mistakes that can be stored --------------------------------------------------------------------------------------


async def test_mistake_in_a_hardware_is_warned_about_once_and_only_where_the_networks_are_known(world):
    new = hardware("a", ("m", "10.0.0.1"), osie="o")
    missing = "spec.osie.name: there is no OSIE d/o yet: the machine netboots nothing until there is"
    assert (await world.review("CREATE", new, dryRun=True)).warnings == (missing,)
    world.reviewer.site = lambda: Site(addresses=frozenset({"10.0.0.1"}))
    ours = "spec.networkInterfaces[m].dhcp.ip: 10.0.0.1 is the address of the edge itself"
    assert (await world.review("CREATE", new, dryRun=True)).warnings == (ours, missing)
    assert (await world.review("UPDATE", new, new)).warnings == ()


async def test_annotation_of_an_osie_that_is_no_checksum_is_warned_about(world):
    bad = osie("http://192.0.2.1/k")
    bad["metadata"]["annotations"] = {"tinkerbell.org/kernel-sha256": "md5:1"}
    (text,) = (await world.review("CREATE", bad)).warnings
    assert text.startswith("metadata.annotations[tinkerbell.org/kernel-sha256]: a SHA-256 checksum is 64 ")
    assert (await world.review("UPDATE", bad, bad)).warnings == ()


# --- what is stored and does not work, or is not used -----------------------------------------------------------------


async def test_reference_to_a_bmc_is_no_unused_field(world):
    new = hardware("h")
    new["spec"]["bmcRef"] = {"name": "h-bmc"}
    assert (await world.review("CREATE", new)).warnings == ()


async def test_servers_by_name_are_warned_about_because_dhcp_carries_addresses_only(world):
    new = hardware("h", (objects.MAC, "10.0.0.5"))
    new["spec"]["networkInterfaces"][objects.MAC]["dhcp"] |= {"timeservers": ["10.0.0.1", "pool.ntp.org"]}
    (warning,) = (await world.review("CREATE", new)).warnings
    assert warning == (
        f"spec.networkInterfaces[{objects.MAC}].dhcp.timeservers[1]: pool.ntp.org is a name, and DHCP carries "
        "addresses only: machines are not told of it"
    )


@pytest.mark.parametrize(
    ("dhcp", "field", "said"),
    [
        ({"ip": "10.0.0.255"}, "ip", "10.0.0.255 is the broadcast address of 10.0.0.0/24: no host can have it"),
        ({"ip": "10.0.0.0"}, "ip", "10.0.0.0 is the network address of 10.0.0.0/24: no host can have it"),
        ({"gateway": "10.0.0.5"}, "gateway", "10.0.0.5 is the address of this machine itself: name the router, or"),
        ({"netmask": "255.255.255.254", "ip": "10.0.0.4"}, "", ""),
        ({"netmask": "255.255.255.255", "gateway": "10.0.0.1"}, "", ""),
    ],
)
async def test_address_that_no_host_can_have_is_warned_about(world, dhcp, field, said):
    world.reviewer.site = Site
    reserved = {"ip": "10.0.0.5", "netmask": "255.255.255.0", **dhcp}
    verdict = await world.review("CREATE", objects.hardware("h", ip=None, namespace="d", dhcp=reserved))
    assert len(verdict.warnings) == bool(said)
    for warning in verdict.warnings:
        assert warning.startswith(f"spec.networkInterfaces[{objects.MAC}].dhcp.{field}: {said}")


@pytest.mark.parametrize(
    ("image", "said"),
    [
        ("registry.example/Actions/image2disk:1", "'Actions/image2disk' is not a repository (lower case letters"),
        ("registry.example/a:no tag", "'no tag' is not a tag"),
        ("registry.example/a@sha256:12", "'sha256:12' is not a sha256 or sha512 digest"),
        ("{{ .Params.registry }}/Actions/x", ""),
        ("registry.example:5000/actions/image2disk", ""),
        ("i", ""),
    ],
)
async def test_image_with_a_name_that_no_registry_has_is_warned_about(world, image, said):
    new = template(image=image)
    verdict = await world.review("CREATE", new)
    assert len(verdict.warnings) == bool(said)
    for warning in verdict.warnings:
        assert warning.startswith(f"spec.actions[0].image: image {image!r}: {said}")
        assert warning.endswith(": the agent can't pull it")
    relabelled = {**new, "metadata": {**new["metadata"], "labels": {"a": "b"}}}
    assert (await world.review("UPDATE", relabelled, new)).warnings == ()


@pytest.mark.parametrize(
    ("interface", "spec", "said"),
    [
        ({}, {}, "has no spec.osie: set it, or the Workflow waits until its machine starts the agent by other means"),
        ({"disableNetboot": True}, {"osie": {"name": "o"}}, "netboots with none of its network interfaces"),
        ({"disableDhcp": True}, {"osie": {"name": "o"}}, "netboots with none of its network interfaces"),
        ({}, {"osie": {"name": "o"}}, ""),
        ({}, {"ipxe": {"inline": "#!ipxe"}}, ""),
    ],
)
async def test_workflow_of_a_machine_that_netboots_nothing_is_warned_about(world, interface, spec, said):
    world.store(objects.hardware("h", namespace="d", interface=interface, **spec))
    world.store(template())
    new = workflow("w", "h", "t")
    verdict = await world.review("CREATE", new)
    assert len(verdict.warnings) == bool(said)
    for warning in verdict.warnings:
        assert warning.startswith(f"spec.hardwareRef.name: Hardware d/h {said}")
    assert (await world.review("UPDATE", new, new)).warnings == ()


@pytest.mark.parametrize(
    ("options", "interface", "spec", "words"),
    [
        ({"bootMode": "netboot"}, {}, {}, "has no spec.bmcRef, which spec.bootOptions.bootMode needs"),
        ({"bootMode": "netboot"}, {}, {"bmcRef": {"name": "b"}}, ""),
        ({"toggleAllowNetboot": True}, {"disableNetboot": True}, {}, ""),
        ({"toggleAllowNetboot": True}, {"disableDhcp": True}, {}, "netboots with none of its network interfaces"),
        ({"bootMode": "isoboot"}, {"disableNetboot": True}, {"bmcRef": {"name": "b"}}, ""),
    ],
)
async def test_boot_options_that_the_hardware_does_not_fit_are_warned_about(world, options, interface, spec, words):
    world.store(objects.hardware("h", namespace="d", interface=interface, osie={"name": "o"}, **spec))
    world.store(template())
    new = workflow("w", "h", "t")
    new["spec"]["bootOptions"] = options
    verdict = await world.review("CREATE", new)
    assert len(verdict.warnings) == bool(words)
    for warning in verdict.warnings:
        assert warning.startswith(f"spec.hardwareRef.name: Hardware d/h {words}")


async def test_secret_that_is_missing_is_warned_about_where_the_api_is_in_this_process(world):
    new = hardware("h", annotations={"tinkerbell.org/userdata-secret": "s/key"})
    assert (await world.review("CREATE", new)).warnings == (), "on a cluster Secrets are not read"
    world.reviewer.exact = True
    verdict = await world.review("CREATE", new)
    assert verdict.warnings == (
        "metadata.annotations[tinkerbell.org/userdata-secret]: there is no Secret d/s yet: the machine gets no "
        "user-data until there is",
    )
    assert (await world.review("UPDATE", new, new)).warnings == ()
    world.api.put({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "namespace": "d"}})
    assert (await world.review("CREATE", hardware("g", annotations=new["metadata"]["annotations"]))).warnings == ()


async def test_edge_in_this_process_is_asked_about_what_a_write_changes(world, caplog):
    async def examine(kind, obj):
        if obj["spec"]["kernelUrl"] == "broken":
            raise OSError("the disk is away")
        return [f"{kind}: {obj['spec']['kernelUrl']} can't be fetched"]

    world.reviewer.examine = examine
    new = osie("http://127.0.0.1/k")
    assert (await world.review("CREATE", new)).warnings == ("OSIE: http://127.0.0.1/k can't be fetched",)
    assert (await world.review("UPDATE", new, new)).warnings == ()
    annotated = {**new, "metadata": {**new["metadata"], "annotations": {"a": "b"}}}
    assert (await world.review("UPDATE", annotated, new)).warnings == (), "that was said before"
    assert (await world.review("CREATE", osie("broken"))).warnings == (), "no write waits for an edge, or fails by it"
    assert "OSIE d/o can't be examined" in caplog.text


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("tinkerbell.org/user-data-secret", "tinkerbell.org/userdata-secret"),
        ("tinkerbell.org/kernel-sha512", "tinkerbell.org/kernel-sha256"),
        ("tinkerbell.org/boot_path", "tinkerbell.org/boot-path"),
        ("tinkerbell.org/boot-path", ""),
        ("tinkerbell.org/rack", ""),
        ("example.org/boot_path", ""),
    ],
)
async def test_annotation_that_is_nearly_one_of_ours_is_warned_about_once(world, name, meant):
    new = hardware("h", annotations={name: "auto"})
    expected = (f"metadata.annotations[{name}]: nothing reads it: is {meant} meant?",) if meant else ()
    assert (await world.review("CREATE", new)).warnings == expected
    assert (await world.review("UPDATE", new, new)).warnings == ()


LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


def annotated(**bytes_by_annotation):
    """Return a Template whose annotations have these sizes in bytes, names included."""
    names = {"text": TEMPLATE_TEXT_ANNOTATION, "residue": V1ALPHA1_ANNOTATION, "applied": LAST_APPLIED}
    sizes = {names[key]: size for key, size in bytes_by_annotation.items()}
    annotations = {name: "x" * (size - len(name)) for name, size in sizes.items()}
    return template() | {"metadata": {"name": "t", "namespace": "d", "annotations": annotations}}


async def test_write_is_rejected_whose_conversion_makes_the_annotations_too_large(world):
    half = MAX_ANNOTATIONS_BYTES // 2
    assert (await world.review("CREATE", annotated(text=half, applied=half))).causes == ()
    (cause,) = (await world.review("CREATE", annotated(text=half + 1, applied=half))).causes
    assert (cause.field, cause.reason) == ("metadata.annotations", "FieldValueTooLong")
    assert cause.message == (
        "the annotations of the stored v1alpha2 object would have 262145 bytes, more than 262144 "
        "(tinkerbell.org/v1alpha1-template has 131073, kubectl.kubernetes.io/last-applied-configuration has 131072): "
        "use `kubectl apply --server-side`, which does not need kubectl.kubernetes.io/last-applied-configuration, or "
        "shorten spec.data"
    )
    (cause,) = (await world.review("CREATE", annotated(residue=MAX_ANNOTATIONS_BYTES + 1))).causes
    assert cause.message.endswith(": shorten the fields that v1alpha2 has no place for (docs/migrating.md)")


async def test_annotations_are_counted_in_bytes_of_utf8(world):
    new = hardware("h", annotations={V1ALPHA1_ANNOTATION: "\N{SNOWMAN}" * (MAX_ANNOTATIONS_BYTES // 3)})
    (cause,) = (await world.review("CREATE", new)).causes
    assert f"{len(V1ALPHA1_ANNOTATION) + MAX_ANNOTATIONS_BYTES // 3 * 3} bytes" in cause.message


async def test_object_with_too_large_annotations_can_be_labelled_and_corrected_in_steps(world):
    large, smaller = annotated(text=2 * MAX_ANNOTATIONS_BYTES), annotated(text=2 * MAX_ANNOTATIONS_BYTES - 1)
    labelled = large | {"metadata": large["metadata"] | {"labels": {"a": "b"}}}
    for new in (labelled, smaller):
        assert (await world.review("UPDATE", new, large)).causes == ()
    assert len((await world.review("UPDATE", large, smaller)).causes) == 1
