"""What docs/deploy and .github say is so: options, files, targets, metrics. `make lint-deploy` checks them by schemas."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from pages import ROOT
from served import serving

import llmirage
from llmirage_client.cli import main

DEPLOY = ROOT / "docs/deploy"
CHART = DEPLOY / "helm/llmirage"
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
# The families of vLLM's own dashboard: examples/online_serving/prometheus_grafana/grafana.json at e88892c9080b, July 2025,
# and what it asked for before (inter_token_latency_seconds was time_per_output_token_seconds).
VLLM_DASHBOARD = [
    "e2e_request_latency_seconds_bucket", "generation_tokens_total", "inter_token_latency_seconds_bucket",
    "kv_cache_usage_perc", "num_requests_running", "num_requests_waiting", "prompt_tokens_total",
    "request_decode_time_seconds_sum", "request_generation_tokens_bucket", "request_max_num_generation_tokens_sum",
    "request_prefill_time_seconds_sum", "request_prompt_tokens_bucket", "request_queue_time_seconds_sum",
    "request_success_total", "time_to_first_token_seconds_bucket",
]  # fmt: skip


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def check_command(words: list[str]) -> None:
    """Raises click.UsageError for an option or value that `llmirage` does not take."""
    context = click.Context(main, info_name="llmirage")
    name, command, rest = main.resolve_command(context, words)
    assert command is not None
    command.make_context(name, rest, parent=context)


def test_every_file_of_yaml_is_yaml() -> None:
    files = [*DEPLOY.rglob("*.yaml"), *DEPLOY.rglob("*.yml"), *(ROOT / ".github").rglob("*.yml")]
    files = [path for path in files if path.parent.name != "templates"]
    assert len(files) >= 12
    assert all(read(path) for path in files)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_run_targets_that_there_are(path: Path) -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    lines = [step["run"] for job in read(path)["jobs"].values() for step in job["steps"] if "run" in step]
    for line in lines:
        if line.startswith("make "):
            assert set(line.split()[1:]) <= set(targets)
    assert read(path)["permissions"] == {"contents": "read"}


def test_all_pythons_and_platforms_get_a_wheel() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    versions = re.findall(r"cp3(\d+)", project["tool"]["cibuildwheel"]["build"])
    classified = re.findall(r":: 3\.(\d+)\b", "\n".join(project["project"]["classifiers"]))
    tested = read(ROOT / ".github/workflows/tests.yml")["jobs"]["tests"]["strategy"]["matrix"]["python"]
    assert versions == classified == [each.partition(".")[2] for each in tested] == ["11", "12", "13", "14"]
    machines = read(ROOT / ".github/workflows/release.yml")["jobs"]["wheels"]["strategy"]["matrix"]["os"]
    assert len(machines) == 5
    assert {each.partition("-")[0] for each in machines} == {"ubuntu", "macos", "windows"}
    command = project["tool"]["cibuildwheel"]["test-command"]
    for name in re.findall(r"\{project\}/([\w./]+)", command):
        assert (ROOT / name).is_file(), name


def test_a_release_publishes_nothing_before_all_of_it_is_built_and_names_no_owner() -> None:
    path = ROOT / ".github/workflows/release.yml"
    jobs = read(path)["jobs"]
    publishing = {name: job for name, job in jobs.items() if {"id-token", "contents"} & _written(job)}
    assert set(publishing) == {"publish", "pages", "tag"}
    for name, job in publishing.items():
        assert job["if"] == "github.ref_type == 'tag'", name
    assert set(jobs["publish"]["needs"]) == jobs.keys() - publishing.keys()
    assert set(jobs["image"]["needs"]) == jobs.keys() - publishing.keys() - {"image"}  # it pushes, too
    assert {job["needs"] for name, job in publishing.items() if name != "publish"} == {"publish"}
    pushed = [step for step in jobs["image"]["steps"] if step["uses"].startswith("docker/build-push-action")]
    assert [step["with"]["push"] for step in pushed] == ["${{ github.ref_type == 'tag' }}"]
    assert "OWNER" not in path.read_text()


def _written(job: dict[str, Any]) -> set[str]:
    return {name for name, right in job.get("permissions", {}).items() if right == "write"}


def test_the_image_has_what_it_copies_and_is_not_root() -> None:
    lines = (DEPLOY / "Dockerfile").read_text().splitlines()
    copied = [name for line in lines if re.match(r"COPY (?!--from)", line) for name in line.split()[1:-1]]
    assert len(copied) > 8
    assert all((ROOT / name).exists() for name in copied)
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    assert {f"!{name}" for name in copied} == {line for line in ignored if line.startswith("!")}
    assert "USER 10001" in lines
    assert any(line.startswith("HEALTHCHECK ") for line in lines)
    check_command(json.loads(lines[-1].removeprefix("CMD ")))


def test_the_container_of_a_node_test_takes_the_options_that_its_page_gives() -> None:
    [words] = re.findall(r"\.withCommand\((\[.*\])\)", (ROOT / "docs/node.md").read_text())
    check_command(json.loads(words))


def test_the_services_of_compose_have_their_files_and_options() -> None:
    services = read(DEPLOY / "compose.yaml")["services"]
    check_command(services["llmirage"]["command"])
    assert services["llmirage"]["read_only"] is True
    for service in services.values():
        for volume in service.get("volumes", ()):
            assert (DEPLOY / volume.split(":")[0]).is_file(), volume
    [job] = read(DEPLOY / "prometheus.yml")["scrape_configs"]
    assert job["static_configs"][0]["targets"] == ["llmirage:8000"]


def test_dashboards_ask_for_metrics_that_there_are() -> None:
    dashboard = json.loads((DEPLOY / "grafana/llmirage.json").read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    with llmirage.Server(virtual_time=True, engine="vllm") as server:
        server.openai().chat.completions.create(model="m", messages=[{"role": "user", "content": "Hello"}])
        there = {name.partition("{")[0] for name in server.metrics()}
        labels = {label for name in server.metrics() for label in re.findall(r'(\w+)="', name)}
    assert len(asked) > 20
    for expression in asked:
        names = re.findall(r"(?:vllm|llmirage):\w+", expression)
        assert names, expression
        assert set(names) <= there, expression
        assert set(re.findall(r"\bby \((\w+)\)", expression)) <= labels
    assert {f"vllm:{name}" for name in VLLM_DASHBOARD} <= there


def test_pods_of_kubernetes_are_locked_up_and_probed() -> None:
    deployment = read(DEPLOY / "kubernetes/base/deployment.yaml")
    pod = deployment["spec"]["template"]
    [container] = pod["spec"]["containers"]
    assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert {"startupProbe", "livenessProbe", "readinessProbe"} <= container.keys()
    assert deployment["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    check_command(container["args"])


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not here")
def test_the_overlay_changes_the_cluster_and_brings_its_script() -> None:
    built = subprocess.run(
        ["kubectl", "kustomize", str(DEPLOY / "kubernetes/large")], capture_output=True, text=True, check=True
    )
    things = {thing["kind"]: thing for thing in yaml.safe_load_all(built.stdout)}
    pod = things["Deployment"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    [volume] = pod["volumes"]
    assert volume["configMap"]["name"] == things["ConfigMap"]["metadata"]["name"]
    assert container["args"][-1] == f"{container['volumeMounts'][0]['mountPath']}/{next(iter(things['ConfigMap']['data']))}"
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    check_command([*container["args"][:-1], str(DEPLOY / "kubernetes/large/replies.yaml")])


def rendered(**values: Any) -> dict[tuple[str, str], Any]:
    """Return what Helm makes of the chart, by kind and name."""
    helm = pytest.importorskip("helm_python", reason="helm-python-sdk is not installed")
    report = helm.lint(CHART, values, strict=True)
    assert not [each for each in report["messages"] if each["severity"] > 1] + report["errors"]
    with helm.Chart.load(CHART) as chart:
        texts = chart.render(values, name="demo", namespace="sim").values()
    things = [thing for text in texts for thing in yaml.safe_load_all(text) if thing]
    return {(thing["kind"], thing["metadata"]["name"]): thing for thing in things}


def test_the_chart_of_helm_makes_pods_that_serve_and_are_found() -> None:
    pools = {role: {"replicas": 2, "args": ["--engine", "vllm"]} for role in ("prefill", "decode")}
    things = rendered(engines={"vllm": None} | pools, fleet={"enabled": True}, gateway={"enabled": True})
    for (kind, name), thing in things.items():
        if kind == "Deployment":
            pod = thing["spec"]["template"]
            assert thing["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
            service = things["Service", name]["spec"]
            assert service["selector"].items() <= pod["metadata"]["labels"].items()
            [container] = pod["spec"]["containers"]
            assert {port["port"] for port in service["ports"]} <= {port["containerPort"] for port in container["ports"]}
            if name != "demo-picker":
                check_command(container["args"])
                assert container["image"] == f"llmirage:{version('llmirage')}"
                assert container["securityContext"]["readOnlyRootFilesystem"] is True
    pool = things["InferencePool", "demo"]["spec"]
    chosen = [
        name
        for (kind, name), thing in things.items()
        if kind == "Deployment"
        and pool["selector"]["matchLabels"].items() <= thing["spec"]["template"]["metadata"]["labels"].items()
    ]
    assert chosen == ["demo-decode", "demo-prefill"]
    assert len(things["Service", "demo-fleet"]["spec"]["ports"]) == 9
    picker = things["Service", pool["endpointPickerRef"]["name"]]["spec"]
    assert pool["endpointPickerRef"]["port"]["number"] in [port["port"] for port in picker["ports"]]
    [backend] = things["HTTPRoute", "demo"]["spec"]["rules"][0]["backendRefs"]
    assert (backend["kind"], backend["name"]) == ("InferencePool", "demo")


def test_the_chart_of_helm_fits_the_schemas_of_kubernetes() -> None:
    schemas = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    known = 0
    for thing in rendered(**{name: {"enabled": True} for name in ("fleet", "gateway", "autoscale", "load")}).values():
        with contextlib.suppress(schemas.SchemaNotFoundError):  # those of CRDs
            schemas.validate(thing, "1.32", strict=True)
            known += 1
    assert known == 11


def test_the_chart_of_helm_fits_the_schema_of_keda() -> None:
    keda = pytest.importorskip("cloudcoil.models.keda.v1alpha1", reason="cloudcoil-models-keda is not installed")
    scaled = rendered(autoscale={"enabled": True})["ScaledObject", "demo-vllm"]
    known = keda.ScaledObject.model_validate(scaled)
    assert known.model_dump(by_alias=True, exclude_unset=True, mode="json") == scaled  # a field that it lacks is dropped


def test_the_chart_of_helm_scales_an_engine_by_a_metric_that_there_is() -> None:
    things = rendered(autoscale={"enabled": True})
    scaled = things["ScaledObject", "demo-vllm"]["spec"]
    assert "replicas" not in things["Deployment", scaled["scaleTargetRef"]["name"]]["spec"]  # they are the autoscaler's
    assert scaled["triggers"][0]["metadata"]["query"] == 'sum(vllm:num_requests_waiting{namespace="sim"})'
    assert "num_requests_waiting" in VLLM_DASHBOARD


def test_the_pods_of_the_charts_job_send_one_load_and_join_its_records(tmp_path: Path) -> None:
    words = ["bundled:dag-three-roots", "--concurrency", "3", "--model", "m"]
    with serving("--ttft", "1", "--itl", "0") as url:
        load = {"enabled": True, "pods": 2, "url": url, "args": words, "seed": 3}
        job = rendered(load=load)["Job", "demo-load-1"]["spec"]
        [container] = job["template"]["spec"]["containers"]
        pods = []
        for index in range(job["completions"]):
            own = {"PODS": "2", "FOLDER": str(tmp_path), "JOB_COMPLETION_INDEX": str(index)}
            path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
            command = [*container["command"], *container["args"]]
            pods.append(subprocess.Popen(command, env=os.environ | own | {"PATH": path}, stdout=subprocess.DEVNULL))
        assert [pod.wait(60) for pod in pods] == [0, 0]
    lines = (tmp_path / "all/profile_export.jsonl").read_text().splitlines()
    conversations = {json.loads(line)["metadata"]["conversation_id"] for line in lines}
    assert len(lines) == len(conversations) == 9
    assert (tmp_path / "all/report.html").stat().st_size > 10_000


def test_the_gitlab_job_uses_commands_as_they_are() -> None:
    job = read(DEPLOY / "gitlab-ci.yml")["agent-tests"]
    lines = [line for line in [*job["before_script"], *job["script"]] if line.startswith("llmirage ")]
    assert len(lines) == 2
    for line in lines:
        check_command(
            re.sub(r" > .*", "", line).replace("replies.yaml", __file__).replace("faults.yaml", __file__).split()[1:]
        )
