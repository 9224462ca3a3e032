"""Write the tables of docs/reference/alerts.md from the default rules of `ullage watch --alerts`.

python -m benchmarks.alert_rules

The second table has, for each threshold, what others alert on, as far as it is public. The sources
were read on 2026-11-26.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.written_part import fill_part
from ullage.watch.alerts.defaults import DEFAULTS
from ullage.watch.alerts.rule import Rule, Unit

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "alerts.md"
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
    """Rewrite the table."""
    PAGE.write_text(render(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"Wrote {PAGE}")


if __name__ == "__main__":
    main()
