"""`tinkedge convert`: convert older and foreign resources to the current ones, and report what could not be converted.

Manifests go to standard output, all else to standard error.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import shutil
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

import click

from edge.building.screen import ProgressLine
from edge.commands import options
from edge.commands.host_options import host_options
from edge.settings import FilePath
from tink.convert.documents import (
    DEFAULT_NAMESPACE,
    InputDocument,
    file_name,
    json_text,
    read_all,
    to_json,
    to_yaml,
    write_whole,
    yaml_document,
)
from tink.convert.findings import ConversionFinding, FindingKind, ObjectPlace
from tink.convert.metal3.to_hardware import HostOptions
from tink.convert.metal3.versions import ConversionSettings
from tink.convert.run import TARGETS, TO_HARDWARE, ConversionResult, as_json, as_table, convert_documents, summary

_STDOUT = Path("-")
_T = TypeVar("_T")


class _Cluster(NamedTuple):
    """How to reach the cluster that is read or written."""

    kubeconfig: Path | None
    context: str | None
    namespace: str | None


@click.command()
@click.option(
    "-f",
    "--filename",
    "files",
    multiple=True,
    metavar="FILE|DIR|-",
    help="Resources to convert: a file, a directory with its subdirectories, or - for standard input. Repeatable.",
)
@click.option("--from-cluster", is_flag=True, help="Convert the resources of a cluster. Requires -n or -A.")
@options.kubeconfig("Kubeconfig for --from-cluster and --apply.")
@options.context
@click.option("-n", "--namespace", help="Namespace to read, and for objects without one.")
@click.option("-A", "--all-namespaces", is_flag=True, help="Read all namespaces.")
@click.option("--to", type=click.Choice(TARGETS), help="Target of Metal3's BareMetalHosts.")
@click.option(
    "--image-registry",
    default="",
    metavar="HOST[/PATH]",
    help="Prefix of images without a registry in Templates of v1alpha1, like docker_registry= of tink-worker.",
)
@options.empty_checksum_type
@host_options
@click.option("-o", "--output", type=click.Choice(["yaml", "json"]), default="yaml", help="Format of the output.")
@click.option(
    "--out", type=FilePath(dir_okay=False), help="Write to this file, completely or not at all; - is standard output."
)
@click.option(
    "--output-dir", type=FilePath(file_okay=False), help="Write one file for each object into this directory."
)
@click.option(
    "--apply", is_flag=True, help="Apply the result to the cluster (server-side apply) instead of writing it."
)
@click.option("--force-conflicts", is_flag=True, help="With --apply: take over fields of another field manager.")
@click.option("--report", type=click.Choice(["table", "json"]), default="table", help="Format of the report.")
@click.option(
    "--report-file", type=FilePath(dir_okay=False), help="Write the report to this file, not to standard error."
)
@click.option("--allow-loss", is_flag=True, help="Exit with 0 even if fields were dropped.")
def convert(
    files: tuple[str, ...],
    from_cluster: bool,
    kubeconfig: Path | None,
    context: str | None,
    namespace: str | None,
    all_namespaces: bool,
    to: str | None,
    image_registry: str,
    empty_checksum_type: Literal["md5", "auto"],
    hosts: HostOptions,
    output: str,
    out: Path | None,
    output_dir: Path | None,
    apply: bool,
    force_conflicts: bool,
    report: str,
    report_file: Path | None,
    allow_loss: bool,
) -> None:
    """Convert older and foreign resources to the current ones.

    Reads Tinkerbell's v1alpha1, the early revision of v1alpha2 and Metal3's BareMetalHost. Each field that can't be
    converted is reported. Exits with 0 if everything was converted, with 2 if fields were dropped, with 1 if an object
    could not be converted; the others are written all the same.
    """
    if bool(files) == from_cluster:
        raise click.UsageError("give -f FILE, DIR or - (or --from-cluster, but not both)")
    if sum((out is not None, output_dir is not None, apply)) > 1:
        raise click.UsageError("--out, --output-dir and --apply exclude each other")
    if from_cluster and (namespace is None) != all_namespaces:
        raise click.UsageError("with --from-cluster, give -n NAMESPACE or -A")
    if "://" in image_registry or any(letter.isspace() for letter in image_registry):
        raise click.UsageError(f"--image-registry: {image_registry!r} must be HOST or HOST/PATH, not a URL")
    out = None if out == _STDOUT else out
    if report_file == _STDOUT and not (out or output_dir or apply):
        raise click.UsageError("--report-file -: the manifests go there; --out or --output-dir puts them elsewhere")
    if force_conflicts and not apply:
        raise click.UsageError("--force-conflicts goes with --apply")
    if hosts != HostOptions() and to != TO_HARDWARE:
        raise click.UsageError("--osie, --bmc, --consumed and --netboot-unmanaged go with --to hardware")
    hosts = replace(hosts, namespace=namespace or DEFAULT_NAMESPACE)
    progress = ProgressLine(shown=sys.stderr.isatty() and not sys.stdout.isatty())
    cluster = _Cluster(kubeconfig, context, namespace)
    try:
        with _without_garbage_collection():
            if from_cluster:
                found: Iterable[InputDocument | ConversionFinding] = asyncio.run(_read(cluster, to, progress))
            else:
                found = _counted(progress, "read", read_all(files))
            versions = ConversionSettings(empty_checksum_type)
            result = convert_documents(found, to=to, hosts=hosts, versions=versions, image_registry=image_registry)
            if apply:
                result = asyncio.run(_apply(cluster, result, progress, force=force_conflicts))
            elif output_dir is not None:
                result = _write_each(result, output, output_dir, progress)
            else:
                result = _write_all(result, output, out, progress)
    except BrokenPipeError:
        # The reader of the manifests has gone (`| head`), so there is nothing more to write.
        sys.stdout = None  # or Python reports the error again at exit
        sys.exit(1)
    finally:
        progress.clear()
    _report(result, report, report_file, "applied" if apply else "written")
    sys.exit(result.exit_code(allow_loss=allow_loss))


def _write_all(result: ConversionResult, output: str, out: Path | None, progress: ProgressLine) -> ConversionResult:
    """Write the manifests as one stream. Return the result, with a finding if that failed. Raises BrokenPipeError."""
    texts = [to_json(result.objects)] if output == "json" else _counted(progress, "written", to_yaml(result.converted))
    try:
        if out is not None:
            write_whole(out, texts)
        else:
            sys.stdout.buffer.writelines(text.encode() for text in texts)
            sys.stdout.buffer.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        if out is None:
            sys.stdout = None  # or Python tries again at exit
        found = _not_written(str(out or "standard output"), error)
        return replace(result, findings=[*result.findings, found], lost=len(result.converted))
    return result


def _write_each(result: ConversionResult, output: str, directory: Path, progress: ProgressLine) -> ConversionResult:
    """Write a file for each object. Return the result, with a finding for each file that could not be written."""
    failed: list[ConversionFinding] = []
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        found = _not_written(str(directory), error)
        return replace(result, findings=[*result.findings, found], lost=len(result.converted))
    for converted in _counted(progress, "written", result.converted):
        text = json_text(converted.obj) if output == "json" else yaml_document(converted)
        path = directory / file_name(converted.obj, f".{output}")
        try:
            write_whole(path, [text])
        except OSError as error:
            failed.append(_not_written(str(path), error))
    return replace(result, findings=[*result.findings, *failed], lost=len(failed))


def _not_written(place: str, error: OSError) -> ConversionFinding:
    return ConversionFinding(FindingKind.ERROR, ObjectPlace(place, 0), "", f"not written: {error.strerror or error}")


async def _read(cluster: _Cluster, to: str | None, progress: ProgressLine) -> list[InputDocument | ConversionFinding]:
    from tink.convert.cluster import read_cluster
    from tink.kube.client import KubeClient

    async with await KubeClient.connect(cluster.kubeconfig, cluster.context) as client:
        return await read_cluster(
            client, cluster.namespace, metal3=to in TARGETS, on_read=lambda count: progress("read", count, 0)
        )


async def _apply(
    cluster: _Cluster, result: ConversionResult, progress: ProgressLine, *, force: bool
) -> ConversionResult:
    """Apply the objects. Return the result, with a finding for each object that was rejected."""
    from tink.convert.cluster import apply_all
    from tink.kube.client import KubeClient

    async with await KubeClient.connect(cluster.kubeconfig, cluster.context) as client:
        applied = await apply_all(
            client,
            result.converted,
            cluster.namespace,
            force=force,
            on_applied=lambda count: progress("applied", count, 0),
        )
    lost = len(result.converted) - applied.count
    return replace(result, findings=[*result.findings, *applied.refused], lost=lost)


def _report(result: ConversionResult, report: str, file: Path | None, done: str) -> None:
    """Write the report to its file or to standard error, and a summary to standard error."""
    terminal = file is None and sys.stderr.isatty()
    width = shutil.get_terminal_size().columns if terminal else 120
    text = as_json(result) if report == "json" else "".join(f"{line}\n" for line in as_table(result.findings, width))
    if file is not None:
        try:
            if file == _STDOUT:
                click.echo(text, nl=False)
            else:
                write_whole(file, [text])
        except OSError as error:
            raise click.ClickException(f"{file}: {error.strerror or error}") from error
    else:
        click.echo(text, nl=False, err=True)
    if report == "table" or file is not None:
        failed = any(finding.kind is FindingKind.ERROR for finding in result.findings)
        click.secho(summary(result, done), err=True, fg="red" if failed else None)
        if not failed and not result.findings and not result.objects:
            click.echo("no Kubernetes object was found: see what -f names (*.yaml, *.yml, *.json)", err=True)


def _counted(progress: ProgressLine, what: str, items: Iterable[_T]) -> Iterator[_T]:
    """Yield the same items, and show their count as progress."""
    for count, item in enumerate(items, start=1):
        progress(what, count, 0)
        yield item


@contextlib.contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Disable garbage collection: there are hundreds of thousands of values, all needed until the end."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
