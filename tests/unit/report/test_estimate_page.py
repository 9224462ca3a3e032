"""The page of an estimate: its bar adds up, foreign text stays text."""

from __future__ import annotations

import json
import re

import pytest

from ullage.facts.families.builtin import find_model
from ullage.facts.families.config import Config
from ullage.verbs.capacity.function import Capacity, capacity
from ullage.verbs.estimate.function import Estimate, estimate_training


@pytest.fixture(scope="module")
def training() -> Estimate:
    return estimate_training(
        "gpt2", gpu="t4", batch=4, length=512, which_gpu=True, largest="batch", knobs=True
    )


@pytest.fixture(scope="module")
def serving() -> Capacity:
    return capacity("llama-3.1-8b", gpu="h100-80gb", users=4)


def document_in(page: str) -> object:
    """The document that a page holds."""
    found = re.search(r'<script type="application/json" id="document">(.*?)</script>', page)
    assert found is not None
    return json.loads(found[1])


def test_the_page_holds_the_document(training: Estimate, serving: Capacity) -> None:
    for answer in (training, serving):
        assert document_in(answer.html) == json.loads(json.dumps(answer.document))


def test_nothing_is_fetched(serving: Capacity) -> None:
    assert not re.search(
        r"""src=|<link[^>]+href="(?!data:)|@import|url\(|fetch|https?://""", serving.html
    )


def test_the_verdict_is_the_documents(training: Estimate, serving: Capacity) -> None:
    for answer in (training, serving):
        assert answer.document["verdict"] == "fits"
    assert '<h1 class="verdict"><b class="good">fits</b> on h100-80gb' in serving.html
    assert "fits on t4" in training.html


def test_names_of_foreign_files_stay_text() -> None:
    config = Config("<b>&</script>", find_model("gpt2").config.fields)
    for page in (estimate_training(config, length=64).html, capacity(config).html):
        assert "<b>&" not in page and "&</script>" not in page
