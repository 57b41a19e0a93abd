"""Invalid combinations of training flags, each with advice in the error."""

import pytest

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
        ["--training=gumbel", "--gumbel_temperature=0.5"],
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
        (["--objective=mlm", "--training=reinforce"], "trains one network"),
        (["--objective=mlm", "--generator=unigram"], "trains one network"),
        (["--generator=unigram", "--training=gumbel"], "has no network"),
        (["--generator=uniform", "--sharing=nes"], "has no network"),
        (["--generator=uniform", "--generator_learning_rate=1"], "has no network"),
        (["--generator_steps=5"], "setting of --training=two_stage"),
        (["--adversarial_steps=5"], "setting of --training=reinforce or gumbel"),
        (["--gumbel_temperature=2"], "setting of --training=gumbel"),
        (["--training=two_stage", *SAME[:2]], "Add --sharing=nes"),
        (["--freeze_generator", "--init_from=x"], "Add --sharing=nes"),
        (["--training=two_stage", "--sharing=nes"], "both need one size"),
        (
            ["--training=two_stage", *SAME, "--generator_steps=9", *NINE_STEPS],
            "must be between 1 and",
        ),
        (["--training=two_stage", *SAME, *FROZEN], "trains the generator first"),
        (["--freeze_generator", "--sharing=nes"], "sample noise"),
        ([*FROZEN, "--training=reinforce"], "nothing to train in the generator"),
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
        (["--objective=mlm", "--sentence_weight=1"], "trains one network"),
        (["--objective=mlm", "--sharing=gdes"], "trains one network"),
        (
            ["--training=two_stage", *SAME[:2], "--sharing=token"],
            "sharing=token does",
        ),
        (["--training=two_stage", *SAME[:2], "--sharing=untied"], "tables included"),
        (["--sharing=all"], "--generator_hidden_size=0.25 .* set both to 1"),
        (["--sharing=all", *SAME[:2], "--training=gumbel"], "one encoder for both"),
        (["--training=gumbel", "--objective=electra_15"], "as the paper does"),
        (["--training=reinforce", "--sentence_weight=1"], "as the paper does"),
        (["--objective=electric", "--temperature=2"], "leave --temperature=1"),
        (["--objective=electric", "--disallow_correct"], "--nodisallow_correct"),
        (["--objective=electric", "--nosampling_dropout"], "--nosampling_dropout"),
        (["--objective=electric", "--sentence_weight=1"], "--sentence_weight"),
        (["--objective=electric", "--generator=unigram"], "noise from a two-tower"),
        (["--objective=electric", "--training=two_stage"], "use --training=joint"),
        (["--generator=two_tower", "--training=reinforce"], "use --training=joint"),
        (["--generator=two_tower", "--sharing=all", *SAME[:2]], "one direction each"),
        # Flags without effect; the error names the required flag.
        (["--objective=mlm", "--temperature=3"], "no effect with --objective=mlm"),
        (["--objective=mlm", "--disallow_correct"], "no effect with --objective=mlm"),
        (["--objective=mlm", "--discriminator_weight=3"], "--discriminator_weight has"),
        (["--masking=dynamic", "--mask_variants=3"], "setting of --masking=static"),
        (["--temperature_shape=exponential"], "needs --final_temperature"),
        (["--tpu=local"], "setting of --distribution=tpu"),
        (["--adversarial_weight=2"], r"must be in \[0, 1\]"),
        (["--adversarial_start=-1"], "must not be negative"),
        (["--final_temperature=1"], "a schedule needs both"),
        (["--temperature=0"], "--temperature must be positive"),
    ],
)
def test_impossible_combinations_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        parse(*arguments)
