import pytest

from electra_tf.runs.report import HealthWarnings

# H(0.06) = 0.2270 nats.
COLLAPSED = {
    "discriminator_auc": 0.51,
    "discriminator_loss": 0.2270,
    "replaced_fraction": 0.06,
}
# Metrics of a healthy run at 5,000 steps, from an issue of the original repository.
EARLY = {
    "discriminator_auc": 0.682,
    "discriminator_loss": 0.3594,
    "replaced_fraction": 0.13,
}
STRONG = {
    "discriminator_auc": 0.9,
    "discriminator_loss": 0.1,
    "replaced_fraction": 0.04,
}


def warnings_of(windows, min_steps=5000):
    messages = []
    sink = HealthWarnings(0.15, messages.append, min_steps=min_steps, windows=3)
    for index, values in enumerate(windows):
        sink(10_000 + 100 * index, values)
    return messages


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (COLLAPSED, "AUC 0.510, loss 0.2270 where a constant guess has 0.2270"),
        (STRONG, "only 4.0% of the tokens are replaced at a mask rate of 15%"),
    ],
)
def test_each_failure_is_reported_once_with_numbers(values, message):
    (line,) = warnings_of([values] * 9)
    assert "step 10200" in line
    assert message in line
    assert warnings_of([values] * 9, min_steps=20_000) == []


def test_the_base_rate_is_that_of_the_positions_of_the_loss():
    """At masked positions with 40 % replaced the base rate gives H(0.4) = 0.673."""
    windows = [
        {**COLLAPSED, "discriminator_loss": 0.673, "replaced_masked_fraction": 0.4}
    ]
    (message,) = warnings_of(windows * 9)
    assert "loss 0.6730 where a constant guess has 0.6730" in message
    better = {**windows[0], "discriminator_loss": 0.6}
    assert warnings_of([better] * 9) == []


def test_collapse_is_judged_over_replaceable_tokens():
    """Detecting only [CLS] and [SEP] is a collapse: H(0.07) = 0.2536 nats."""
    values = {**COLLAPSED, "discriminator_auc": 0.58, "discriminator_loss": 0.21}
    assert warnings_of([values] * 9) == []
    own = {"replaceable_loss": 0.2536, "replaced_replaceable_fraction": 0.07}
    (message,) = warnings_of([{**values, **own, "replaceable_auc": 0.51}] * 9)
    assert "AUC 0.510, loss 0.2536 where a constant guess has 0.2536" in message
    assert warnings_of([{**COLLAPSED, **own, "replaceable_auc": 0.6}] * 9) == []


def test_both_can_be_reported():
    assert len(warnings_of([COLLAPSED] * 3 + [STRONG] * 3)) == 2


@pytest.mark.parametrize(
    "windows",
    [
        [EARLY] * 9,
        [COLLAPSED, COLLAPSED, EARLY] * 3,
        [{"loss": 2.0}] * 9,
        # Released sizes: about 6 % replaced with 15 % masked.
        [{**EARLY, "replaced_fraction": 0.06}] * 9,
    ],
)
def test_healthy_runs_are_left_alone(windows):
    assert warnings_of(windows) == []
