"""Each default rule: what raises it, what does not, and when it is over."""

from __future__ import annotations

import random
from typing import Any

import pytest

from ullage.operate.watch.alerts.event import Event
from ullage.operate.watch.alerts.rules_file import DEFAULTS, KINDS

GIB = 2**30


def course(scene: Any, seconds: int, make: Any, step: int = 1) -> list[Any]:
    return [make(at) for at in range(0, seconds, step)]


def times(scene: Any, samples: list[Any], name: str) -> list[tuple[int, str]]:
    return [(round(at), change) for at, change, _ in scene.events(samples, name)]


def first(scene: Any, samples: list[Any], name: str) -> Event:
    event: Event = scene.events(samples, name)[0][2]
    return event


def test_every_kind_has_one_default_rule_of_its_name() -> None:
    assert [rule.name for rule in DEFAULTS] == list(KINDS)
    assert all(rule.kind is KINDS[rule.name] for rule in DEFAULTS)
    assert all(not rule.is_beyond(rule.clear) for rule in DEFAULTS)


# Memory.
def publishing(scene: Any, at: int, **device: Any) -> Any:
    """A sample of a job that has what is given, on a GPU where nobody else is."""
    device = {"allocated_bytes": 10 * GIB, "reserved_bytes": 20 * GIB} | device
    gpu = scene.gpu(used=device["reserved_bytes"])
    return scene.sample(1000 + at, gpu, jobs=[scene.job(device=device)])


@pytest.mark.parametrize(("gib", "is_raised"), [(75.9, False), (76.1, True)])
def test_allocated_near_the_limit(scene: Any, gib: float, is_raised: bool) -> None:  # noqa: FBT001
    sizes = {"allocated_bytes": int(gib * GIB), "reserved_bytes": int(gib * GIB)}
    samples = course(scene, 20, lambda at: publishing(scene, at, **sizes))
    assert times(scene, samples, "allocated") == ([(0, "raised")] if is_raised else [])


def test_a_full_cache_is_healthy(scene: Any) -> None:
    samples = course(scene, 600, lambda at: publishing(scene, at, reserved_bytes=79 * GIB))
    assert scene.changes(samples) == []


def test_allocated_is_measured_at_what_others_leave(scene: Any) -> None:
    def make(at: int) -> Any:
        sizes = {"allocated_bytes": 29 * GIB, "reserved_bytes": 29 * GIB}
        return scene.sample(1000 + at, scene.gpu(used=79 * GIB), jobs=[scene.job(device=sizes)])

    event = first(scene, course(scene, 5, make), "allocated")
    assert event.text == "allocated up to 29.0 GiB of the 30.0 GiB that it can have"


def test_a_peak_between_two_samples_is_seen(scene: Any) -> None:
    def make(at: int) -> Any:
        peaks = [20.0, 78.0 if at == 10 else 20.0]
        return scene.sample(1000 + at, jobs=[scene.job(step=at + 2, peaks=peaks)])

    assert times(scene, course(scene, 100, make), "allocated") == [(10, "raised"), (71, "cleared")]


@pytest.mark.parametrize("counter", ["num_alloc_retries", "num_device_frees"])
def test_reserved_near_the_limit_while_memory_is_given_back(scene: Any, counter: str) -> None:
    def make(at: int) -> Any:
        count = min(at // 10, 6)
        return publishing(scene, at, reserved_bytes=76 * GIB, **{counter: count})

    # Three within two minutes; the last at 60, and two minutes and a half later it is over.
    assert times(scene, course(scene, 300, make), "reserved") == [(30, "raised"), (210, "cleared")]


def test_memory_given_back_with_room_to_spare_is_healthy(scene: Any) -> None:
    samples = course(scene, 300, lambda at: publishing(scene, at, num_device_frees=10 * at))
    assert times(scene, samples, "reserved") == []


def test_a_counter_that_torch_does_not_have(scene: Any) -> None:
    full = {"reserved_bytes": 76 * GIB, "num_device_frees": None}
    samples = course(scene, 300, lambda at: publishing(scene, at, **full))
    assert times(scene, samples, "reserved") == []


def test_a_counter_that_jumps_back_is_no_event(scene: Any) -> None:
    full = {"reserved_bytes": 76 * GIB}
    samples = course(
        scene, 300, lambda at: publishing(scene, at, num_alloc_retries=1000 - 10 * at // 3, **full)
    )
    assert times(scene, samples, "reserved") == []


def test_used_memory_of_processes_that_publish_nothing(scene: Any) -> None:
    def make(at: int) -> Any:
        return scene.sample(1000 + at, scene.gpu(used=73 * GIB if at < 300 else 40 * GIB))

    samples = course(scene, 500, make)
    assert times(scene, samples, "unpublished") == [(60, "raised"), (360, "cleared")]


def test_caches_beside_a_small_process_are_not_counted(scene: Any) -> None:
    def make(at: int) -> Any:
        gpu = scene.gpu(used=78 * GIB, processes=(scene.process(), scene.process(7, GIB)))
        sizes = {"allocated_bytes": 40 * GIB, "reserved_bytes": 76 * GIB}
        return scene.sample(1000 + at, gpu, jobs=[scene.job(device=sizes)])

    assert times(scene, course(scene, 300, make), "unpublished") == []


def growing(scene: Any, at: int, pace: float, start: float = 20.0, stop: int = 10**6) -> Any:
    """A step a second, whose peak grows by `pace` GiB until a step."""
    peaks = [start + pace * min(step, stop) for step in range(max(at - 63, 0), at + 1)]
    now = {"allocated_bytes": int(peaks[-1] * GIB) - GIB, "reserved_bytes": 79 * GIB}
    job = scene.job(step=at + 1, peaks=peaks, device={**now, "allocated_peak_bytes": 79 * GIB})
    return scene.sample(1000 + at, scene.gpu(used=79 * GIB), jobs=[job])


def test_a_forecast_below_ten_minutes(scene: Any) -> None:
    # 60 GiB at 0.05 GiB a second are 20 minutes; 10 are left at second 600.
    samples = course(scene, 1000, lambda at: growing(scene, at, 0.05))
    ((at, change),) = times(scene, samples, "forecast")
    assert change == "raised"
    assert 600 + 60 <= at <= 600 + 62
    assert "grows by 51.2 MiB a step" in first(scene, samples, "forecast").text


def test_growth_that_ends_is_no_forecast(scene: Any) -> None:
    samples = course(scene, 300, lambda at: growing(scene, at, 1.0, stop=30))
    assert scene.changes(samples, "forecast", "growth") == []


def test_growth_from_step_to_step(scene: Any) -> None:
    samples = course(scene, 400, lambda at: growing(scene, at, 2**-18, stop=200))  # 4 KiB
    assert times(scene, samples, "growth") == []
    samples = course(scene, 400, lambda at: growing(scene, at, 2**-16, stop=200))
    (raised, cleared) = times(scene, samples, "growth")
    assert raised == (35 + 60, "raised")
    assert 200 + 60 <= cleared[0] <= 200 + 60 + 20


@pytest.mark.parametrize("seed", range(5))
def test_steps_that_go_up_and_down_do_not_grow(scene: Any, seed: int) -> None:
    draw = random.Random(seed)
    heights = [draw.uniform(20, 60) for _ in range(1500)]

    def make(at: int) -> Any:
        return scene.sample(
            1000 + at, jobs=[scene.job(step=at + 1, peaks=heights[max(at - 63, 0) : at + 1])]
        )

    assert scene.changes(course(scene, 1500, make), "growth", "forecast") == []


def test_fragmentation_is_of_large_jobs(scene: Any) -> None:
    split = {"allocated_bytes": 10 * GIB, "inactive_split_bytes": 30 * GIB}
    large = course(scene, 90, lambda at: publishing(scene, at, reserved_bytes=50 * GIB, **split))
    assert times(scene, large, "fragmentation") == [(60, "raised")]
    small = course(scene, 90, lambda at: publishing(scene, at, reserved_bytes=39 * GIB, **split))
    assert times(scene, small, "fragmentation") == []


def test_pieces_that_the_peak_uses_are_no_fragmentation(scene: Any) -> None:
    def make(at: int) -> Any:
        sizes = {"inactive_split_bytes": 45 * GIB, "reserved_bytes": 60 * GIB}
        job = scene.job(step=at + 2, peaks=[58.0, 58.0], device=sizes)
        return scene.sample(1000 + at, scene.gpu(used=60 * GIB), jobs=[job])

    assert times(scene, course(scene, 200, make), "fragmentation") == []


def test_out_of_memory_that_a_job_survives(scene: Any) -> None:
    samples = course(scene, 600, lambda at: publishing(scene, at, num_ooms=int(at >= 50)))
    assert times(scene, samples, "out-of-memory") == [(50, "raised"), (350, "cleared")]


# The GPU.
def with_gpu(scene: Any, at: int, **fields: Any) -> Any:
    return scene.sample(1000 + at, scene.gpu(**fields))


@pytest.mark.parametrize(("degrees", "is_raised"), [(82, False), (83, True)])
@pytest.mark.parametrize("offset", [0, 20])
def test_temperature_by_the_range_of_this_gpu(
    scene: Any,
    degrees: int,
    offset: int,
    is_raised: bool,  # noqa: FBT001
) -> None:
    fields = {"temperature_c": degrees + offset, "slowdown_c": 87 + offset}
    samples = course(scene, 60, lambda at: with_gpu(scene, at, **fields))
    assert times(scene, samples, "temperature") == ([(30, "raised")] if is_raised else [])


def test_without_its_range_a_temperature_says_nothing(scene: Any) -> None:
    samples = course(scene, 60, lambda at: with_gpu(scene, at, temperature_c=99, slowdown_c=None))
    assert times(scene, samples, "temperature") == []


def test_throttling_by_heat_and_not_by_a_power_cap(scene: Any) -> None:
    hot, capped = frozenset({"hw_thermal_slowdown"}), frozenset({"sw_power_cap"})
    samples = course(scene, 200, lambda at: with_gpu(scene, at, throttle_reasons=capped))
    assert times(scene, samples, "throttling") == []
    samples = course(
        scene, 300,
        lambda at: with_gpu(scene, at, throttle_reasons=hot if at < 100 else frozenset()),
    )  # fmt: skip
    (raised, cleared) = times(scene, samples, "throttling")
    assert raised == (30, "raised")
    assert cleared == (100 + 53 + 60, "cleared")


def test_utilisation_that_falls_while_a_job_runs(scene: Any) -> None:
    def make(at: int) -> Any:
        return with_gpu(scene, at, gpu_frac=0.3 if 800 <= at < 1400 else 0.9)

    samples = course(scene, 1700, make)
    (raised, cleared) = times(scene, samples, "utilisation")
    assert 800 + 300 <= raised[0] <= 800 + 300 + 60
    assert 1400 + 60 <= cleared[0] <= 1400 + 60 + 60
    assert "says no more than that" in first(scene, samples, "utilisation").text


def test_activity_that_falls_while_kernels_run_all_the_time(scene: Any) -> None:
    """As of a job that waits in NCCL: NVML's utilisation stays at 100 %."""

    def make(at: int) -> Any:
        sm_active = None if at in (0, 700, 900) else 0.1 if at >= 800 else 0.8
        dram_active = None if sm_active is None else 0.05
        return with_gpu(
            scene, at, gpu_frac=1.0, sm_active_frac=sm_active, dram_active_frac=dram_active
        )

    samples = course(scene, 1300, make)
    ((at, change),) = times(scene, samples, "utilisation")
    assert change == "raised" and 800 + 300 <= at <= 800 + 300 + 60
    assert "of the multiprocessors or of the memory" in first(scene, samples, "utilisation").text
    unknown = course(scene, 1300, lambda at: with_gpu(scene, at, gpu_frac=1.0))
    assert times(scene, unknown, "utilisation") == []


def test_a_job_of_memory_alone_has_not_stopped(scene: Any) -> None:
    def make(at: int) -> Any:
        shares = (0.9, 0.3) if at < 800 else (0.2, 0.85)
        return with_gpu(scene, at, sm_active_frac=shares[0], dram_active_frac=shares[1])

    assert times(scene, course(scene, 1300, make), "utilisation") == []


def test_a_gpu_that_never_worked_cannot_fall(scene: Any) -> None:
    def make(at: int) -> Any:
        return with_gpu(scene, at, gpu_frac=0.02 if at >= 800 else 0.2)

    assert times(scene, course(scene, 2000, make), "utilisation") == []


def test_another_job_has_its_own_usual_load(scene: Any) -> None:
    def make(at: int) -> Any:
        if at < 800:
            return with_gpu(scene, at, gpu_frac=0.9)
        return with_gpu(scene, at, gpu_frac=0.3, processes=(scene.process(200),))

    assert times(scene, course(scene, 2000, make), "utilisation") == []


def test_a_job_that_ends_is_no_fall(scene: Any) -> None:
    def make(at: int) -> Any:
        return with_gpu(scene, at, **({"gpu_frac": 0.0, "processes": ()} if at >= 800 else {}))

    assert times(scene, course(scene, 2000, make), "utilisation") == []


@pytest.mark.parametrize("watts", [250.0, 690.0])
def test_power_that_changes_at_the_same_utilisation(scene: Any, watts: float) -> None:
    def make(at: int) -> Any:
        return with_gpu(scene, at, power_w=watts if 800 <= at < 1000 else 500.0)

    (raised, cleared) = times(scene, course(scene, 1300, make), "power")
    assert 800 + 60 <= raised[0] <= 800 + 60 + 60
    assert 1000 + 60 <= cleared[0] <= 1000 + 60 + 60


def test_power_that_falls_with_the_load_is_healthy(scene: Any) -> None:
    def make(at: int) -> Any:
        return with_gpu(scene, at, **({"power_w": 90.0, "gpu_frac": 0.1} if at >= 800 else {}))

    assert times(scene, course(scene, 1300, make), "power") == []


def test_power_above_its_limit(scene: Any) -> None:
    samples = course(scene, 300, lambda at: with_gpu(scene, at, power_w=760.0 if at < 90 else 600))
    (raised, cleared) = times(scene, samples, "power-limit")
    assert raised == (30, "raised")
    assert 90 + 60 <= cleared[0] <= 90 + 60 + 30
    samples = course(
        scene, 300, lambda at: with_gpu(scene, at, power_w=760.0 if at % 9 == 0 else 600)
    )
    assert times(scene, samples, "power-limit") == []


def test_an_uncorrected_error(scene: Any) -> None:
    samples = course(scene, 900, lambda at: with_gpu(scene, at, ecc_uncorrected=5 + (at >= 100)))
    assert times(scene, samples, "ecc-uncorrected") == [(100, "raised"), (700, "cleared")]


def test_errors_from_before_are_none(scene: Any) -> None:
    samples = course(scene, 100, lambda at: with_gpu(scene, at, ecc_uncorrected=5))
    assert times(scene, samples, "ecc-uncorrected") == []


def test_a_driver_that_starts_anew_counts_from_0(scene: Any) -> None:
    def make(at: int) -> Any:
        return with_gpu(scene, at, ecc_uncorrected=5 if at < 50 else int(at >= 70))

    assert times(scene, course(scene, 100, make), "ecc-uncorrected") == [(70, "raised")]


def test_errors_while_the_gpu_was_lost_are_counted(scene: Any) -> None:
    def make(at: int) -> Any:
        count = None if 50 <= at < 60 else 5 + (at >= 60)
        return with_gpu(scene, at, ecc_uncorrected=count, is_lost=count is None)

    assert times(scene, course(scene, 100, make), "ecc-uncorrected") == [(60, "raised")]


def test_corrected_errors_that_rise_fast(scene: Any) -> None:
    slow = course(scene, 1200, lambda at: with_gpu(scene, at, ecc_corrected=at // 10))
    assert times(scene, slow, "ecc-corrected") == []
    fast = course(scene, 1200, lambda at: with_gpu(scene, at, ecc_corrected=min(at, 120)))
    assert times(scene, fast, "ecc-corrected")[0] == (101, "raised")


def test_a_lost_gpu(scene: Any) -> None:
    def make(at: int) -> Any:
        return with_gpu(scene, at, is_lost=10 <= at < 20)

    assert times(scene, course(scene, 30, make), "gpu-lost") == [(10, "raised"), (20, "cleared")]


# Processes and jobs.
def idle(scene: Any, at: int, **process: Any) -> Any:
    gpu = scene.gpu(gpu_frac=0.0 if at < 3000 else 0.5, processes=(scene.process(**process),))
    return scene.sample(1000 + at, gpu)


def test_a_process_that_holds_memory_and_does_nothing(scene: Any) -> None:
    samples = course(scene, 3100, lambda at: idle(scene, at), 10)
    assert times(scene, samples, "idle-holder") == [(1800, "raised"), (3000, "cleared")]


def test_little_memory_may_be_held(scene: Any) -> None:
    samples = course(scene, 2900, lambda at: idle(scene, at, used=3 * GIB), 10)
    assert times(scene, samples, "idle-holder") == []


def test_an_idle_process_beside_a_busy_one(scene: Any) -> None:
    def make(at: int) -> Any:
        processes = (scene.process(sm_frac=0.0), scene.process(200, sm_frac=0.8))
        return scene.sample(1000 + at, scene.gpu(processes=processes))

    event = first(scene, course(scene, 2000, make, 10), "idle-holder")
    assert event.subject.pid == 100


def test_whose_kernels_ran_may_be_unknown(scene: Any) -> None:
    def make(at: int) -> Any:
        processes = (scene.process(), scene.process(200))
        return scene.sample(1000 + at, scene.gpu(processes=processes))

    assert times(scene, course(scene, 4000, make, 10), "idle-holder") == []


def ranks(scene: Any, at: int, odd: dict[str, Any], count: int = 4) -> Any:
    gpus = tuple(scene.gpu(index=rank, uuid=f"GPU-{rank}") for rank in range(count))
    jobs = [
        scene.job(
            step=at + 8, pid=100 + rank, rank=rank, world_size=8, started_s=float(rank),
            device={"uuid": f"GPU-{rank}"},
            **({"peaks": [30.0 + rank / 10] * 8, "seconds": 1.0 + rank / 100}
               | (odd if rank == 2 else {})),
        )
        for rank in range(count)
    ]  # fmt: skip
    return scene.sample(1000 + at, *gpus, jobs=jobs)


@pytest.mark.parametrize(
    ("odd", "name"),
    [
        ({"seconds": 1.4}, "straggler-time"),
        ({"peaks": [36.0] * 8}, "straggler-memory"),
        ({"peaks": [20.0] * 8}, "straggler-memory"),
    ],
)
def test_a_rank_unlike_the_others(scene: Any, odd: dict[str, Any], name: str) -> None:
    samples = course(scene, 200, lambda at: ranks(scene, at, odd if at < 100 else {}))
    changes = scene.events(samples, "straggler-time", "straggler-memory")
    assert [(at, change, event.rule.name, event.subject.rank) for at, change, event in changes] == [
        (30, "raised", name, 2),
        (160, "cleared", name, 2),
    ]


@pytest.mark.parametrize("odd", [{}, {"seconds": 0.5}, {"peaks": [32.0] * 8}, {"peaks": [90.0]}])
def test_ranks_that_are_alike(scene: Any, odd: dict[str, Any]) -> None:
    samples = course(scene, 200, lambda at: ranks(scene, at, odd))
    assert scene.changes(samples, "straggler-time", "straggler-memory") == []


def test_two_ranks_do_not_tell_which_is_odd(scene: Any) -> None:
    def make(at: int) -> Any:
        sample = ranks(scene, at, {"seconds": 9.0})
        return scene.sample(sample.time_s, *sample.devices, jobs=sample.jobs[1:3])

    assert scene.changes(course(scene, 200, make), "straggler-time") == []


def test_steps_that_the_scaler_skips(scene: Any) -> None:
    def make(at: int) -> Any:
        skips = min(at, 10) + max(min(at, 400) - 200, 0) // 2
        return scene.sample(1000 + at, jobs=[scene.job(step=at, scaler_skips=skips)])

    (raised, cleared) = times(scene, course(scene, 700, make), "scaler-skips")
    assert 200 + 40 <= raised[0] <= 200 + 50
    assert 400 + 80 <= cleared[0] <= 400 + 130


def test_a_scaler_that_skips_everything(scene: Any) -> None:
    def make(at: int) -> Any:
        job = scene.job(step=min(at, 200), scaler_skips=max(at - 200, 0))
        return scene.sample(1000 + at, jobs=[job])

    ((at, change),) = times(scene, course(scene, 400, make), "scaler-skips")
    assert change == "raised"
    assert at <= 200 + 50


def test_a_scaler_that_looks_for_its_scale_is_healthy(scene: Any) -> None:
    def make(at: int) -> Any:
        return scene.sample(1000 + at, jobs=[scene.job(step=at, scaler_skips=min(at, 16))])

    assert times(scene, course(scene, 400, make), "scaler-skips") == []
