"""The search for a server, with a stub in place of the engine."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ullage.facts.families.builtin import find_model
from ullage.facts.gpus import find_gpu
from ullage.ground.errors import SpecError
from ullage.operate.serve.search.bounds import Bounds, Judged
from ullage.operate.serve.search.candidate import Candidate, given_flags
from ullage.operate.serve.search.search import Order, Run, candidates_of, improve, search_server
from ullage.operate.serve.slo import parse_slo
from ullage.operate.serve.traffic import load_traffic
from ullage.verbs.smallest.function import smallest

COMMAND = ("vllm", "serve", "llama-3.1-8b")
TRAFFIC = "poisson:rate=2,prompt=1000,output=100,duration=1m"
SLO = "ttft=2s,tpot=60ms"
GPUS = "l4,l40s,h100-80gb"


class Engine:
    """Holds the objective on the named GPUs."""

    def __init__(self, *holding: str, problem: str = "") -> None:
        self.holding, self.problem = holding, problem
        self.runs: list[tuple[str, int, tuple[str, ...]]] = []

    def __call__(self, candidate: Candidate, words: tuple[str, ...]) -> Run:
        self.runs.append((candidate.gpu.slug, candidate.num_gpus, words))
        goodput = 0.999 if candidate.gpu.slug in self.holding else 0.5
        return Run(goodput, 100_000, problem=self.problem)


def order(traffic: str = TRAFFIC, command: tuple[str, ...] = COMMAND) -> Order:
    return Order(
        command, find_model("llama-3.1-8b").config, load_traffic(traffic), parse_slo(SLO),
        tuple(find_gpu(name) for name in GPUS.split(",")), most_gpus=2,
    )  # fmt: skip


def test_the_smallest_that_was_run_and_holds_is_the_answer() -> None:
    engine = Engine("l40s", "h100-80gb")
    result = smallest(COMMAND, traffic=TRAFFIC, slo=SLO, gpu=GPUS, runner=engine)
    assert result.best is not None and result.best.candidate.gpu.slug == "l40s"
    assert result.best.candidate.num_gpus == 1 and result.exit_code == 0
    # The command that is printed is the one that was run.
    assert ("l40s", 1, result.best.words) in engine.runs
    assert result.best.words[:3] == COMMAND


def test_a_forecast_that_is_wrong_is_found_by_the_run() -> None:
    engine = Engine("h100-80gb")
    result = smallest(COMMAND, traffic=TRAFFIC, slo=SLO, gpu=GPUS, runner=engine)
    assert result.best is not None and result.best.candidate.gpu.slug == "h100-80gb"
    failed = [server for server in result.searched.servers if not server.is_held]
    assert failed and all(server.forecast_frac > 0.9 for server in failed)


@pytest.mark.parametrize("engine", [Engine(), Engine("l40s", problem="it did not start")])
def test_nothing_is_claimed_that_no_run_has_shown(engine: Engine) -> None:
    result = smallest(COMMAND, traffic=TRAFFIC, slo=SLO, gpu=GPUS, runner=engine)
    assert result.best is None and result.exit_code == 1
    assert result.worths == () and result.capacity is None
    assert 1 <= len(engine.runs) <= 6
    assert "no server holds" in result.text()


def test_requests_without_an_answer_do_not_hold() -> None:
    result = smallest(
        COMMAND,
        traffic=TRAFFIC,
        slo=SLO,
        gpu="h100-80gb",
        runner=lambda *_: Run(1.0, 1, num_refused=1),
    )
    assert result.best is None


def test_a_gpu_without_room_for_the_model_is_never_run() -> None:
    engine = Engine("l4", "l40s", "h100-80gb")
    long = "poisson:rate=0.1,prompt=100000,output=100,duration=1m"
    result = smallest(COMMAND, traffic=long, slo="ttft=200s", gpu=GPUS, runner=engine)
    assert result.searched.judged[0].candidate.gpu.slug == "l4"
    assert result.searched.judged[0].reason
    assert not any(gpu == "l4" and number == 1 for gpu, number, _ in engine.runs)


def test_candidates_come_in_the_order_of_their_memory() -> None:
    sizes = [each.total_bytes for each in candidates_of(order())]
    assert sizes == sorted(sizes) and len(sizes) == 6


def test_the_longest_request_sets_the_length_of_the_command() -> None:
    candidate = candidates_of(order("poisson:rate=1,prompt=3000,output=200,duration=1m"))[0]
    assert candidate.words(COMMAND)[3:5] == ("--max-model-len", "4096")
    with pytest.raises(SpecError, match="leave the flag out, or give 3200"):
        candidates_of(order("poisson:rate=1,prompt=3000,output=200,duration=1m",
                            (*COMMAND, "--max-model-len", "2048")))  # fmt: skip


def test_flags_of_the_command_stay() -> None:
    command = (*COMMAND, "--max-num-seqs=16", "-tp", "2", "--enforce-eager")
    fields = given_flags(command).fields
    assert fields == {"max_seqs": 16, "tensor_parallel": 2, "has_graphs": False}
    for candidate in candidates_of(order(command=command)):
        assert candidate.num_gpus == 2 and candidate.plan.max_seqs == 16
        assert "--max-num-seqs" not in candidate.words(command)[len(command) :]


def test_flags_help_where_the_defaults_do_not_hold() -> None:
    # Long prompts beside short answers: large steps keep tokens waiting.
    request = order("poisson:rate=1.2,prompt=3000,output=300,duration=3m")
    bounds = Bounds(request.config, request.traffic, request.slo)
    candidate = next(
        each for each in candidates_of(request) if each.gpu.slug == "l40s" and each.num_gpus == 1
    )
    default, best = bounds.judge(candidate), improve(bounds, candidate, request)
    assert best.goodput_frac >= default.goodput_frac
    extra = set(best.candidate.chosen) - set(candidate.chosen)
    assert (best.goodput_frac > default.goodput_frac) == bool(extra)


def test_the_worth_of_a_narrower_cache_is_its_tokens() -> None:
    result = smallest(COMMAND, traffic=TRAFFIC, slo=SLO, gpu="l40s", runner=Engine("l40s"))
    rows = {worth.flag: worth for worth in result.worths}
    assert rows["--kv-cache-dtype fp8"].tokens_frac == pytest.approx(2, rel=0.01)
    assert not rows["--kv-cache-dtype fp8"].is_taken
    assert result.capacity is not None and result.capacity >= 1
    assert "what each flag is worth" in result.text().lower()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"slo": "speed=1s"}, "slo"),
        ({"allow": ["int4"]}, "expected any of fp8-cache"),
        ({"target": 0.0}, "expected above 0"),
        ({"gpu": "no-such"}, "no-such"),
    ],
)
def test_an_impossible_order_is_refused(changed: dict[str, object], message: str) -> None:
    fields: dict[str, object] = {"slo": SLO, "gpu": GPUS, "runner": Engine(), **changed}
    with pytest.raises(SpecError, match=message):
        smallest(COMMAND, traffic=TRAFFIC, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("forecast", "holding", "best", "runs"),
    [
        # The forecast puts the L4 just below the target: it is run as well, and decides.
        ({"l4": 0.9, "l40s": 0.995}, ("l4", "l40s"), "l4", ["l40s", "l4"]),
        ({"l4": 0.9, "l40s": 0.995}, ("l40s",), "l40s", ["l40s", "l4"]),
        # Far below: no run is spent.
        ({"l4": 0.5, "l40s": 0.995}, ("l4", "l40s"), "l40s", ["l40s"]),
        # The larger one is run where the smaller does not hold, and the smaller not again.
        ({"l4": 0.995, "l40s": 0.995}, ("l40s",), "l40s", ["l4", "l40s"]),
        ({"l4": 0.5, "l40s": 0.9}, ("l4", "l40s"), None, []),
    ],
)
def test_runs_are_spent_where_they_decide(
    monkeypatch: pytest.MonkeyPatch,
    forecast: dict[str, float],
    holding: tuple[str, ...],
    best: str | None,
    runs: list[str],
) -> None:
    def improve_by_table(_bounds: Bounds, candidate: Candidate, _order: Order) -> Judged:
        return Judged(candidate, 1000, forecast[candidate.gpu.slug], 0)

    monkeypatch.setattr("ullage.operate.serve.search.search.improve", improve_by_table)
    engine = Engine(*holding)
    request = replace(
        order(), gpus=(find_gpu("l4"), find_gpu("l40s")), most_gpus=1
    )  # fmt: skip
    result = search_server(request, engine)
    assert [gpu for gpu, _, _ in engine.runs] == runs
    assert (None if result.best is None else result.best.candidate.gpu.slug) == best


def test_no_more_runs_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "ullage.operate.serve.search.search.improve", lambda _, each, __: Judged(each, 1000, 1.0, 0)
    )
    engine = Engine()
    result = search_server(replace(order(), most_runs=3), engine)
    assert result.best is None and len(engine.runs) == 3
