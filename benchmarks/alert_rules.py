"""Write the default rules of `ullage watch --alerts` as the tables of docs/reference/alerts.md, and
as rules of Prometheus into docs/monitoring/alert-rules.yml.

python -m benchmarks.alert_rules

Of a rule of Prometheus the expression is here; its figures and its severity are those of the
default rule. The second table has, for each threshold, what others alert on, as far as it is
public. The sources were read on 2026-11-26.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from benchmarks.written_part import fill_part
from ullage.operate.watch.alerts.rule import Rule, Unit
from ullage.operate.watch.alerts.rules_file import DEFAULTS

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGE = DOCS / "reference" / "alerts.md"
PROMETHEUS = DOCS / "monitoring" / "alert-rules.yml"
HYPERPOD = (
    "[SageMaker HyperPod](https://docs.aws.amazon.com/sagemaker/latest/dg/"
    "hyperpod-observability-addon-alerts.html)"
)
HOMELAB = (
    "[k3s-argocd-proxmox](https://github.com/mitchross/k3s-argocd-proxmox/blob/main/monitoring/"
    "prometheus-stack/GPU-MONITORING.md)"
)
GPU_PULSE = "[gpu-pulse 0.3.0](https://github.com/Optimizer077/gpu-pulse/releases/tag/v0.3.0)"
# By the name of the rule: what others alert on, with the source. Of the other rules none was found.
PRACTICE = {
    "unpublished": (
        f"used memory above 85 % (warning) and 95 % (critical): {HOMELAB}; at 95 % for 20 s: "
        f"{GPU_PULSE}. Ours leaves out what recorded jobs hold in their caches"
    ),
    "temperature": (
        f"above 80 °C for 5 min (warning) and 85 °C for 1 min (critical): {HYPERPOD}; at the "
        "GPU's own slowdown: [NVSentinel](https://docs.nvidia.com/nvsentinel/runbooks/"
        "gpu-thermal-margin.md). Ours is relative to the GPU's own slowdown, 5 °C before it"
    ),
    "throttling": f"any thermal violation within 5 min (critical): {HYPERPOD}",
    "utilisation": (
        "95th percentile below 70 %: [SageMaker Debugger](https://rdrr.io/github/DyfanJones/"
        "sagemaker-r-debugger/man/LowGPUUtilization.html); GPUs of one job more than 10 points "
        "apart over 2 min: [Composer](https://docs.mosaicml.com/projects/composer/en/v0.14.1/"
        "api_reference/generated/composer.callbacks.HealthChecker.html). None of them compares "
        "with what it was before"
    ),
    "power": (
        "a mean of one second outside 65 to 1500 W on a GB200 (critical): [NVIDIA Health "
        "Validation](https://docs.nvidia.com/health-validation/reference/checks/gpu.md); above "
        f"400 W: {HOMELAB}. None of them compares with what it was before"
    ),
    "power-limit": f"a power violation above 100 for 5 min: {HYPERPOD}",
    "ecc-uncorrected": f"any (critical): {HYPERPOD}",
    "idle-holder": f"load below 10 % with half of the memory in use, for 15 min: {GPU_PULSE}",
}

_HEAD = """\
# The default rules of `ullage watch --alerts`, as far as metrics allow them, written by
# `python -m benchmarks.alert_rules`. The label "rule" is the default rule's name. `power`,
# `straggler-time` and `straggler-memory` compare what these metrics do not have: they come through
# UllageAlert, from an exporter that runs with --alerts.
groups:
  - name: ullage
    rules:
"""
_REST = """\
      # All that `ullage watch --alerts` itself has raised; with it the rules above are not needed.
      - alert: UllageAlert
        expr: ullage_alert == 1
        annotations:
          summary: "{{ $labels.rule }}: GPU {{ $labels.gpu }}, pid {{ $labels.pid }}"
      - alert: UllageExporterStale
        expr: time() - ullage_sample_timestamp_seconds > 60
        labels: {severity: warning}
        annotations:
          summary: "{{ $labels.instance }}: the last sample is {{ $value | humanizeDuration }} old"
      - alert: UllageExporterDown
        expr: up{job="ullage"} == 0
        for: 1m
        labels: {severity: warning}
        annotations:
          summary: "{{ $labels.instance }}: the exporter does not answer"
"""
_JOB = "pid {{ $labels.pid }} on GPU {{ $labels.gpu }}"
_GPU = "GPU {{ $labels.gpu }}"
_ON_GPU = "on (instance, gpu, UUID, GPU_I_ID)"
_BY_GPU = "by (instance, gpu, UUID, GPU_I_ID)"
_RETRIES = "increase(ullage_alloc_retries_total[%(window)s])"
_REASONS = "hw_slowdown|sw_thermal_slowdown|hw_thermal_slowdown|hw_power_brake_slowdown"
_HELD_DOWN = f'ullage_throttling{{reason=~"{_REASONS}"}}'
_LOAD = "DCGM_FI_DEV_GPU_UTIL[%(window)s]"
_SKIPS = "ullage_scaler_skips_total"


class Expression(NamedTuple):
    """A default rule in Prometheus's terms.

    Attributes:
        lines: of the expression; `%(threshold)g`, `%(least)g`, `%(percent)g` (of the least) and
            `%(window)s` stand for the rule's figures.
        summary: for people.
        remark: where it differs from the default rule.
    """

    lines: tuple[str, ...]
    summary: str
    remark: str = ""


EXPRESSIONS = {
    "allocated": Expression(
        ("1 - ullage_headroom_bytes / ullage_limit_bytes > %(threshold)g",),
        f"{_JOB}: peak at {{{{ $value | humanizePercentage }}}} of its limit",
    ),
    "reserved": Expression(
        (
            f"(({_RETRIES} + increase(ullage_device_frees_total[%(window)s]))",
            f"or {_RETRIES}) > %(threshold)g",
            "and ullage_reserved_bytes / ullage_limit_bytes > %(least)g",
        ),
        f"{_JOB}: the allocator gives its cache back to go on",
        "Retries and segments given back, where the default rule counts samples with any.",
    ),
    "unpublished": Expression(
        (
            f"(DCGM_FI_DEV_FB_USED - {_ON_GPU}",
            f"(sum {_BY_GPU} (ullage_reserved_bytes - ullage_allocated_bytes) / 1048576",
            f"or 0 * sum {_BY_GPU} (DCGM_FI_DEV_FB_USED)))",
            f"/ {_ON_GPU} DCGM_FI_DEV_FB_TOTAL > %(threshold)g",
            f"and {_ON_GPU}",
            f"(ullage_process_memory_bytes unless {_ON_GPU[:-1]}, pid) ullage_allocated_bytes)",
        ),
        f"{_GPU}: {{{{ $value | humanizePercentage }}}} used, with processes that publish nothing",
    ),
    "forecast": Expression(
        ("ullage_forecast_seconds < %(threshold)g",),
        f"{_JOB}: full in {{{{ $value | humanizeDuration }}}}",
    ),
    "growth": Expression(
        ("ullage_growth_bytes_per_step > %(threshold)g",),
        f"{_JOB}: the peak grows by {{{{ $value | humanize1024 }}}}B a step",
        "The metric needs 12 steps, the default rule 36.",
    ),
    "fragmentation": Expression(
        (
            "ullage_fragmented_bytes / ullage_reserved_bytes > %(threshold)g",
            "and ullage_reserved_bytes / ullage_limit_bytes > %(least)g",
        ),
        f"{_JOB}: {{{{ $value | humanizePercentage }}}} of reserved memory is fragmented",
        "Of now, not at the peak.",
    ),
    "out-of-memory": Expression(
        ("increase(ullage_ooms_total[%(window)s]) > %(threshold)g",),
        f"{_JOB} ran out of memory, and survived it",
    ),
    "temperature": Expression(
        ("DCGM_FI_DEV_GPU_TEMP - DCGM_FI_DEV_SLOWDOWN_TEMP > %(threshold)g",),
        f"{_GPU}: {{{{ $value }}}} degrees above (negative: below) where it slows down",
    ),
    "throttling": Expression(
        (
            f"avg_over_time(max without (reason) ({_HELD_DOWN})[%(window)s:15s]) > %(threshold)g",
        ),
        f"{_GPU}: heat or the power supply holds the clocks down",
    ),
    "utilisation": Expression(
        (
            f"avg_over_time({_LOAD}) < %(threshold)g * avg_over_time({_LOAD} offset 10m)",
            f"and avg_over_time({_LOAD} offset 10m) > %(percent)g",
            f"and {_ON_GPU}",
            f"(count {_BY_GPU} (ullage_process_memory_bytes)",
            f"== count {_BY_GPU} (ullage_process_memory_bytes offset 10m))",
        ),
        f"{_GPU}: utilisation fell to {{{{ $value }}}} %, with as many processes",
    ),
    "power-limit": Expression(
        ("DCGM_FI_DEV_POWER_USAGE / DCGM_FI_DEV_ENFORCED_POWER_LIMIT > %(threshold)g",),
        f"{_GPU}: {{{{ $value | humanizePercentage }}}} of its limit of power",
    ),
    "ecc-uncorrected": Expression(
        ("increase(DCGM_FI_DEV_ECC_DBE_VOL_TOTAL[%(window)s]) > %(threshold)g",),
        f"{_GPU}: uncorrected memory errors",
    ),
    "ecc-corrected": Expression(
        ("increase(DCGM_FI_DEV_ECC_SBE_VOL_TOTAL[%(window)s]) > %(threshold)g",),
        f"{_GPU}: {{{{ $value }}}} corrected memory errors in 10 minutes",
    ),
    "gpu-lost": Expression(
        ("ullage_gpu_lost > %(threshold)g",),
        f"{_GPU}: the driver has lost it",
    ),
    "idle-holder": Expression(
        (
            "ullage_process_memory_bytes / 1048576",
            f"> {_ON_GPU} group_left () %(least)g * DCGM_FI_DEV_FB_TOTAL",
            "and max_over_time(ullage_process_sm_ratio[5m]) == 0",
        ),
        f"{_JOB} holds {{{{ $value }}}} MiB and does nothing",
    ),
    "scaler-skips": Expression(
        (
            f"increase({_SKIPS}[5m]) / (delta(ullage_step[5m]) > 0) > %(threshold)g",
            "and ullage_step > 50",
        ),
        "pid {{ $labels.pid }}: the gradient scaler skips {{ $value | humanizePercentage }} of the "
        "steps",
    ),
}  # fmt: skip


def render_prometheus() -> str:
    """The rules of Prometheus, in the order of the default rules."""
    known = [rule for rule in DEFAULTS if rule.name in EXPRESSIONS]
    return _HEAD + "".join(map(_prometheus_rule, known)) + _REST


def _prometheus_rule(rule: Rule) -> str:
    lines, summary, remark = EXPRESSIONS[rule.name]
    figures = {
        "threshold": rule.threshold,
        "least": rule.least,
        "percent": 100 * rule.least,
        "window": _duration(rule.window_s),
    }
    first, *others = [line % figures for line in lines]
    folded = [">-", first, *others] if others or len(first) > 100 else [first]
    text = f"      # {remark}\n" if remark else ""
    text += f"      - alert: Ullage{rule.name.title().replace('-', '')}\n"
    text += "        expr: " + "\n          ".join(folded) + "\n"
    if rule.for_s:
        text += f"        for: {_duration(rule.for_s)}\n"
    text += f"        labels: {{severity: {rule.severity.value}, rule: {rule.name}}}\n"
    return f'{text}        annotations:\n          summary: "{summary}"\n'


def _duration(seconds: float) -> str:
    return f"{seconds:g}s" if seconds % 60 else f"{seconds / 60:g}m"


def render(page: str) -> str:
    """The page with the tables of today's rules."""
    page = fill_part(page, "rules", "\n".join(_table()))
    return fill_part(page, "thresholds", "\n".join(_thresholds()))


def _table() -> tuple[str, ...]:
    head = "| rule | measures | alert | for | over | for | window | `least` | severity |"
    return (head, "|---" * 9 + "|", *map(_row, DEFAULTS))


def _row(rule: Rule) -> str:
    kind, seconds = rule.kind, Unit.SECONDS.format
    side, calm = ("below", "at least") if kind.is_below else ("above", "at most")
    least = f"{Unit.SHARE.format(rule.least)}: {kind.least_says}" if kind.least_says else ""
    cells = (
        f"`{rule.name}`",
        kind.says,
        f"{side} {kind.unit.format(rule.threshold)}",
        seconds(rule.for_s),
        f"{calm} {kind.unit.format(rule.clear)}",
        seconds(rule.clear_for_s),
        seconds(rule.window_s) if kind.can_look_back else "",
        least,
        rule.severity.value,
    )
    return f"| {' | '.join(cells)} |"


def _thresholds() -> tuple[str, ...]:
    unknown = PRACTICE.keys() - {rule.name for rule in DEFAULTS}
    if unknown:
        raise SystemExit(f"there is no rule {', '.join(sorted(unknown))}")
    head = "| rule | alert | others |"
    return (head, "|---" * 3 + "|", *map(_threshold, DEFAULTS))


def _threshold(rule: Rule) -> str:
    side = "below" if rule.kind.is_below else "above"
    ours = f"{side} {rule.kind.unit.format(rule.threshold)}"
    return f"| `{rule.name}` | {ours} | {PRACTICE.get(rule.name, 'a choice; no source')} |"


def main() -> None:
    """Rewrite both files."""
    PAGE.write_text(render(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    PROMETHEUS.write_text(render_prometheus(), encoding="utf-8")
    print(f"Wrote {PAGE} and {PROMETHEUS}")


if __name__ == "__main__":
    main()
