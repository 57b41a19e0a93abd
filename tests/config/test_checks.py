import pytest

from electra_tf.config.pretraining import MaskingConfig
from electra_tf.config.records import RecordsConfig
from tests.flag_parsing import parse

WHOLE = "--generator_hidden_size=1 --generator_layers=1"
SAME = f"{WHOLE} --sharing=nes"
STAGES = f"--training=two_stage {SAME}"
FROZEN = "--freeze_generator --sharing=nes --generator_init_from=runs/x"
CLEAN = "--training=reinforce --nosampling_dropout"
LATE = "--lr_schedule=sequential --warmup_steps=10 --num_train_steps=6"


@pytest.mark.parametrize(
    "flags",
    [
        "--training=reinforce --adversarial_start=3 --adversarial_steps=4",
        "--training=gumbel --adversarial_weight=0.5",
        "--freeze_generator --sharing=nes --init_from=runs/x",
        "--training=two_stage --notwo_stage_copy --sharing=untied",
        f"{CLEAN} --dropout=0 --attention_dropout=0",
        "--objective=electric --sharing=gdes",
        "--objective=electric --mask_select=with_replacement",
        "--generator=two_tower --objective=electra_15 --temperature=2",
        f"--generator=two_tower {FROZEN}",
    ],
)
def test_what_fits_is_allowed(flags):
    parse(*flags.split())


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--objective=mlm --training=reinforce", "use it with --objective=electra"),
        ("--objective=mlm --generator=unigram", "used with --objective=mlm"),
        ("--generator=unigram --training=gumbel", "with --generator=unigram"),
        ("--objective=mlm --sharing=gdes", "used with --objective=mlm"),
        ("--objective=mlm --sentence_weight=1", "used with --objective=mlm"),
        ("--generator=uniform --sharing=nes", "with --generator=uniform"),
        ("--objective=electric --disallow_correct", "--disallow_correct"),
        ("--objective=electric --nosampling_dropout", "--nosampling_dropout"),
        ("--generator=uniform --temperature=2", "--temperature cannot be used with"),
        ("--generator=two_tower --mask_rule=bert", "--mask_rule cannot be used with"),
        ("--generator_steps=5", "needs --training=two_stage"),
        ("--adversarial_steps=5", "needs --training=reinforce or gumbel"),
        (f"--training=two_stage {WHOLE}", "Add --sharing=nes"),
        ("--freeze_generator --init_from=x", "Add --sharing=nes"),
        ("--training=two_stage --sharing=nes", "both need one size"),
        (f"{STAGES} --generator_steps=9 --num_train_steps=9", "must be between 1 and"),
        (f"{STAGES} {LATE} --generator_steps=6", "must be between 1 and"),
        (f"{STAGES} {FROZEN}", "with --training=two_stage"),
        ("--freeze_generator --sharing=nes", "sample noise"),
        (f"{FROZEN} --generator_learning_rate=1", "cannot be used with --freeze_gen"),
        (CLEAN, "samples of the forward pass"),
        ("--training=gumbel --mask_select=with_replacement", "at its own position"),
        ("--training=gumbel --discriminator_weight=0", "must be positive"),
        ("--sharing=all", "--generator_hidden_size=0.25 .* set both to 1"),
        (f"--sharing=all {WHOLE} --training=gumbel", "one encoder for both"),
        ("--training=gumbel --objective=electra_15", "as the paper does"),
        ("--training=reinforce --sentence_weight=1", "training=reinforce"),
        ("--objective=electric --temperature=2", "--temperature cannot"),
        ("--objective=electric --sentence_weight=1", "--sentence_weight"),
        ("--objective=electric --generator=unigram", "--generator cannot be used"),
        ("--objective=electric --training=two_stage", "cannot share variables"),
        ("--generator=two_tower --training=reinforce", "--training cannot"),
        (f"--generator=two_tower --sharing=all {WHOLE}", "excludes two towers"),
        # Flags without effect; the error names the required flag.
        ("--temperature_shape=exponential", "needs --final_temperature"),
        ("--final_temperature=1", "a schedule needs both"),
        # Limits of single flags, and flags of the same group.
        ("--mask_rate=0", "--mask_rate must be above 0, got 0"),
        ("--adversarial_weight=2", "--adversarial_weight must be at most 1"),
        ("--clip_norm=0", "--clip_norm must be above 0, got 0"),
        ("--eval_records=x", "--eval_records needs --records"),
        ("--mixed_precision=float16 --distribution=tpu", "use bfloat16"),
        ("--distribution=multi_worker", "needs --records"),
        ("--hidden_size=100 --num_heads=3", "not divisible"),
        ("--position_init=sinusoidal --embedding_size=7", "even .*got 7"),
        ("--max_seq_length=1024", "exceeds --max_positions"),
        ("--num_train_steps=" + "9" * 400, "--num_train_steps must fit into 64 bit"),
        ("--eval_fraction=1", r"--eval_fraction must be at most 0\.999, got 1"),
        ("--seed=2147483648", "--seed must be at most 2147483647, got 21"),
        ("--num_layers=-1", "--num_layers must be at least 1, got -1"),
        ("--discriminator_weight=-50", "--discriminator_weight must be at least 0"),
        ("--dropout=1", "--dropout must be below 1, got 1"),
        ("--learning_rate=inf", "--learning_rate must be a finite number, got inf"),
        (LATE, "--warmup_steps=10 leaves no step .* use --lr_schedule=product"),
    ],
)
def test_impossible_combinations_are_refused(flags, message):
    with pytest.raises(ValueError, match=message):
        parse(*flags.split())


def test_names_are_also_checked_in_python():
    with pytest.raises(ValueError, match=r"dedup=Near is unknown. Did you mean near"):
        RecordsConfig(dedup="Near")
    with pytest.raises(ValueError, match=r"masking=2 is unknown. Allowed are static"):
        MaskingConfig(masking=2)
