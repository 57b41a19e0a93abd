"""Invalid combinations of training flags, each with advice in the error."""

import pytest

from electra_tf.config.pretraining import MaskingConfig
from electra_tf.config.records import RecordsConfig
from tests.flag_parsing import parse

SAME = ["--generator_hidden_size=1", "--generator_layers=1", "--sharing=nes"]
NO_DROPOUT = ["--dropout=0", "--attention_dropout=0"]
NINE_STEPS = ["--num_train_steps=9"]
FROZEN = ["--freeze_generator", "--sharing=nes", "--generator_init_from=runs/x"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--training=two_stage", *SAME],
        ["--training=reinforce", "--adversarial_start=3", "--adversarial_steps=4"],
        ["--training=gumbel", "--adversarial_weight=0.5"],
        FROZEN,
        ["--freeze_generator", "--sharing=nes", "--init_from=runs/x"],
        ["--generator=uniform"],
        ["--generator_learning_rate=1e-4"],
        ["--training=two_stage", *SAME[:2], "--sharing=gdes"],
        ["--training=two_stage", "--notwo_stage_copy", "--sharing=untied"],
        ["--training=two_stage", *SAME, "--objective=replace_mlm"],
        ["--training=reinforce", "--sharing=token", "--mask_select=spans"],
        ["--training=reinforce", "--nosampling_dropout", *NO_DROPOUT],
        ["--objective=electric"],
        ["--objective=electric", "--generator=two_tower", "--sharing=gdes"],
        ["--objective=electric", "--mask_select=with_replacement"],
        ["--generator=two_tower", "--objective=electra_15", "--temperature=2"],
        ["--generator=two_tower", *FROZEN],
        ["--generator=unigram", "--objective=all_tokens_mlm", "--sentence_weight=1"],
    ],
)
def test_what_fits_is_allowed(arguments):
    parse(*arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--objective=mlm", "--training=reinforce"],
            "use it with --objective=electra",
        ),
        (["--objective=mlm", "--generator=unigram"], "used with --objective=mlm"),
        (["--generator=unigram", "--training=gumbel"], "with --generator=unigram"),
        (["--generator=uniform", "--sharing=nes"], "with --generator=uniform"),
        (["--generator=uniform", "--generator_learning_rate=1"], "=uniform"),
        (["--generator_steps=5"], "setting of --training=two_stage"),
        (["--adversarial_steps=5"], "setting of --training=reinforce or gumbel"),
        (["--training=two_stage", *SAME[:2]], "Add --sharing=nes"),
        (["--freeze_generator", "--init_from=x"], "Add --sharing=nes"),
        (["--training=two_stage", "--sharing=nes"], "both need one size"),
        (
            ["--training=two_stage", *SAME, "--generator_steps=9", *NINE_STEPS],
            "must be between 1 and",
        ),
        (["--training=two_stage", *SAME, *FROZEN], "with --training=two_stage"),
        (["--freeze_generator", "--sharing=nes"], "sample noise"),
        ([*FROZEN, "--training=reinforce"], "with --training=reinforce"),
        ([*FROZEN, "--generator_learning_rate=1"], "nothing to train in the generator"),
        (
            ["--training=reinforce", "--nosampling_dropout"],
            "samples of the forward pass",
        ),
        (
            ["--training=gumbel", "--mask_select=with_replacement"],
            "rewards each sample at its own position",
        ),
        (["--training=gumbel", "--discriminator_weight=0"], "must be positive"),
        (["--objective=mlm", "--sentence_weight=1"], "used with --objective=mlm"),
        (["--objective=mlm", "--sharing=gdes"], "used with --objective=mlm"),
        (
            ["--training=two_stage", *SAME[:2], "--sharing=token"],
            "sharing=token does",
        ),
        (["--training=two_stage", *SAME[:2], "--sharing=untied"], "tables included"),
        (["--sharing=all"], "--generator_hidden_size=0.25 .* set both to 1"),
        (["--sharing=all", *SAME[:2], "--training=gumbel"], "one encoder for both"),
        (["--training=gumbel", "--objective=electra_15"], "as the paper does"),
        (["--training=reinforce", "--sentence_weight=1"], "training=reinforce"),
        (["--objective=electric", "--temperature=2"], "--temperature cannot"),
        (["--objective=electric", "--disallow_correct"], "--disallow_correct"),
        (["--objective=electric", "--nosampling_dropout"], "--nosampling_dropout"),
        (["--objective=electric", "--sentence_weight=1"], "--sentence_weight"),
        (["--objective=electric", "--generator=unigram"], "noise from two towers"),
        (["--objective=electric", "--training=two_stage"], "cannot share variables"),
        (["--generator=two_tower", "--training=reinforce"], "--training cannot"),
        (["--generator=two_tower", "--sharing=all", *SAME[:2]], "excludes two towers"),
        # Flags without effect; the error names the required flag.
        (["--objective=mlm", "--temperature=3"], "used with --objective=mlm"),
        (["--objective=mlm", "--disallow_correct"], "used with --objective=mlm"),
        (
            ["--objective=mlm", "--discriminator_weight=3"],
            "discriminator_weight cannot",
        ),
        (["--temperature_shape=exponential"], "needs --final_temperature"),
        (["--adversarial_weight=2"], r"must be in \[0, 1\]"),
        (["--adversarial_start=-1"], "must not be negative"),
        (["--final_temperature=1"], "a schedule needs both"),
        (["--temperature=0"], "--temperature must be positive"),
    ],
)
def test_impossible_combinations_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        parse(*arguments)


def test_names_are_also_checked_in_python():
    with pytest.raises(ValueError, match=r"dedup=Near is unknown. Did you mean near"):
        RecordsConfig(dedup="Near")
    with pytest.raises(ValueError, match=r"masking=2 is unknown. Allowed are static"):
        MaskingConfig(masking=2)
