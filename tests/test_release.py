"""Files of a release: workflows, citation, templates, classifiers. They cannot run here, so their
form and consistency with the project are checked.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import fredholm

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def commands(job: dict[str, Any]) -> list[str]:
    return [step["run"] for step in job["steps"] if "run" in step]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_have_their_required_fields(path):
    workflow = read(path)
    # YAML 1.1 reads the key `on` as true.
    assert {"name", True, "permissions", "jobs"} <= set(workflow)
    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        assert job["timeout-minutes"] <= 90
        assert job["runs-on"]
        for step in job["steps"]:
            assert ("uses" in step) != ("run" in step)
            if "uses" in step:
                assert re.fullmatch(r"[\w.-]+/[\w.-]+@[\w/.]+", step["uses"])
            if step.get("uses", "").startswith("actions/checkout"):
                assert step["with"] == {"persist-credentials": False}


def test_files_of_workflows_exist():
    text = "\n".join(line for path in WORKFLOWS for job in read(path)["jobs"].values()
                     for line in commands(job))  # fmt: skip
    named = re.findall(r"(?:python|bash) ([\w./]+/[\w.]+)", text)
    assert named
    assert [name for name in named if not (ROOT / name).is_file()] == []


def test_only_the_publishing_job_has_an_identity_token():
    jobs = read(ROOT / ".github" / "workflows" / "publish.yml")["jobs"]
    assert "permissions" not in jobs["build"]
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert jobs["publish"]["needs"] == "build"
    assert not commands(jobs["publish"]), "what can publish runs no code of the repository"


def test_the_citation_has_the_current_version():
    citation = read(ROOT / "CITATION.cff")
    assert citation["version"] == PROJECT["version"] == fredholm.__version__
    assert citation["license"] == PROJECT["license"]
    assert citation["authors"] == PROJECT["authors"]
    assert {"cff-version", "message", "title", "type"} <= set(citation)


def test_classifiers_name_the_tested_python_versions():
    checked = read(ROOT / ".github" / "workflows" / "checks.yml")["jobs"]["linux"]["steps"]
    versions = [step["with"]["python-version"] for step in checked if "setup-python" in str(step)]
    named = re.findall(r":: Python :: (\d\.\d+)", "\n".join(PROJECT["classifiers"]))
    assert named == versions


@pytest.mark.parametrize("name", ["wrong.yml", "missing.yml"])
def test_templates_have_their_required_fields(name):
    template = read(ROOT / ".github" / "ISSUE_TEMPLATE" / name)
    assert {"name", "description", "body"} <= set(template)
    identities = [field["id"] for field in template["body"]]
    assert len(identities) == len(set(identities))
    assert all(field["attributes"]["label"] for field in template["body"])
