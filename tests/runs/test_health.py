import pytest

from electra_tf.runs.report import HealthWarnings


def metrics(auc, loss, replaced):
    names = ("discriminator_auc", "discriminator_loss", "replaced_fraction")
    return dict(zip(names, (auc, loss, replaced), strict=True))


# H(0.06) = 0.2270 nats.
COLLAPSED = metrics(0.51, 0.2270, 0.06)
# Metrics of a healthy run at 5,000 steps, from an issue of the original repository.
EARLY = metrics(0.682, 0.3594, 0.13)
STRONG = metrics(0.9, 0.1, 0.04)
# 40 % of the masked positions are replaced: the base rate gives H(0.4) = 0.673.
MASKED = {**COLLAPSED, "discriminator_loss": 0.673, "replaced_masked_fraction": 0.4}
# Detecting only [CLS] and [SEP] is a collapse: H(0.07) = 0.2536 nats.
SPECIAL = {**COLLAPSED, "discriminator_auc": 0.58, "discriminator_loss": 0.21}
REPLACEABLE = {"replaceable_loss": 0.2536, "replaced_replaceable_fraction": 0.07}


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
        (MASKED, "loss 0.6730 where a constant guess has 0.6730"),
        (
            {**SPECIAL, **REPLACEABLE, "replaceable_auc": 0.51},
            "AUC 0.510, loss 0.2536 where a constant guess has 0.2536",
        ),
        (STRONG, "only 4.0% of the tokens are replaced at a mask rate of 15%"),
    ],
)
def test_each_failure_is_reported_once_with_numbers(values, message):
    (line,) = warnings_of([values] * 9)
    assert "step 10200" in line
    assert message in line
    assert warnings_of([values] * 9, min_steps=20_000) == []


def test_both_can_be_reported():
    assert len(warnings_of([COLLAPSED] * 3 + [STRONG] * 3)) == 2


@pytest.mark.parametrize(
    "windows",
    [
        [EARLY] * 9,
        [COLLAPSED, COLLAPSED, EARLY] * 3,
        [{"loss": 2.0}] * 9,
        # An objective from outside.
        [{"discriminator_auc": 0.5}] * 9,
        # Released sizes: about 6 % replaced with 15 % masked.
        [{**EARLY, "replaced_fraction": 0.06}] * 9,
        [{**MASKED, "discriminator_loss": 0.6}] * 9,
        [SPECIAL] * 9,
        [{**COLLAPSED, **REPLACEABLE, "replaceable_auc": 0.6}] * 9,
    ],
)
def test_healthy_runs_are_left_alone(windows):
    assert warnings_of(windows) == []
