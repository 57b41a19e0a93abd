import importlib
import inspect
import json
import pkgutil
import re

import keras
import pytest

import electra_tf as et
from electra_tf import layers, pretraining, tasks
from electra_tf.api.base import TextModel
from electra_tf.pretraining.adversarial import RewardBaseline
from electra_tf.pretraining.masked_lm import Generator
from electra_tf.tasks.heads import HiddenClassificationHead, TaggingHead
from electra_tf.tasks.span_head import IndependentSpanHead, SpanHead
from tests import ROOT, tiny
from tests.golden.commands import python
from tests.layers.helpers import check_config

PUBLIC = "api data layers layers.losses pretraining serving tasks training"
PACKAGES = ("electra_tf", *(f"electra_tf.{name}" for name in PUBLIC.split()))
BULLET = re.compile(r"^\* `([\w.]+)(?:\((.*)\))?`: \S", re.M)
REFERENCE = (ROOT / "docs" / "reference.md").read_text("utf-8")


def public_names(module):
    """`__all__`, or the functions that the module defines."""
    functions = inspect.getmembers(module, inspect.isfunction)
    own = [name for name, value in functions if value.__module__ == module.__name__]
    names = [name for name in own if not name.startswith("_")]
    return getattr(module, "__all__", names)


def test_public_names_are_those_of_the_reference():
    public = {
        name
        for module in map(importlib.import_module, PACKAGES)
        for name in public_names(module)
        if not inspect.ismodule(getattr(module, name))
    }
    listed = (name.split(".") for name, _ in BULLET.findall(REFERENCE))
    names = {path[-1] for path in listed if path[0] != "model"}
    assert public == names - {"from_preset"}


def test_arguments_of_the_reference():
    namespace = {"et": et, "model": et.TextClassifier}
    for name, arguments in BULLET.findall(REFERENCE):
        if arguments:
            names = inspect.signature(eval(name, namespace)).parameters
            for argument in arguments.removesuffix(", ...").split(", "):
                assert argument.lstrip("*") in names, (name, argument)


def table(**options):
    return layers.TextEmbedding(11, 6, **options)


def small_encoder(name="encoder", direction="right_to_left"):
    return et.TextEncoder(
        table(max_positions=7, dropout=0.2),
        num_layers=1,
        hidden_size=8,
        num_heads=2,
        intermediate_size=12,
        dropout=0.3,
        attention_dropout=0.4,
        direction=direction,
        seed=5,
        remat=True,
        name=name,
        **SCALES,
    )


def adversarial(cls, **kwargs):
    plain = tiny.electra(num_layers=1)
    networks = (plain.generator, plain.discriminator)
    weight = pretraining.LinearChange(0.0, 0.5, 10, begin=3)
    return cls(*networks, adversarial_weight=weight, **kwargs)


def text_model(cls, head, kind, **task):
    about = {"task": "mine", "kind": kind, "text_names": ["text"], **task}
    return cls(
        small_encoder(),
        head,
        task=about,
        vocabulary=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdef"],
        lower_case=False,
        strip_accents=False,
        max_seq_length=7,
        seed=4,
        name="mine",
    )


SCALES = {"layer_norm_epsilon": 1e-6, "initializer_range": 0.05}
BLOCK = {
    "dropout": 0.2,
    "attention_dropout": 0.3,
    "activation": "relu",
    "direction": "left_to_right",
    **SCALES,
}
HEAD = {"dropout": 0.3, "pooling": "layers", "num_states": 3}
SPANS = {"dense_size": 6, "beam_size": 3, "answerability": False}
WEIGHTS = {"generator_weight": 2.0, "discriminator_weight": 3.0}
# One object of every registered class, built with values that are not defaults.
EXAMPLES = {
    "Dropout": lambda: layers.Dropout(0.3),
    "MaskedLMHead": lambda: layers.MaskedLMHead(table(), **SCALES),
    "ReplacedTokenHead": lambda: layers.ReplacedTokenHead(8, initializer_range=0.1),
    "TextEmbedding": lambda: table(
        max_positions=7,
        num_segments=3,
        dropout=0.2,
        position_init="sinusoidal",
        name="words",
        **SCALES,
    ),
    "DeltaEmbedding": lambda: layers.DeltaEmbedding(
        table(max_positions=7), dropout=0.2, name="delta"
    ),
    "SharedWordEmbedding": lambda: layers.SharedWordEmbedding(
        table(num_segments=3), dropout=0.2, name="borrowing"
    ),
    "TransformerEncoder": lambda: layers.TransformerEncoder(
        2, 8, 2, 12, remat=True, **BLOCK
    ),
    "TransformerEncoderBlock": lambda: layers.TransformerEncoderBlock(12, 2, **BLOCK),
    "TextEncoder": small_encoder,
    "MaskedLM": lambda: et.MaskedLM(
        small_encoder(), gradient_accumulation_steps=2, seed=4
    ),
    "ReplacedTokenDetection": lambda: et.ReplacedTokenDetection("masked", name="mine"),
    "TokenPrediction": lambda: pretraining.TokenPrediction(table(), name="mine"),
    "CopyingTokenPrediction": lambda: pretraining.CopyingTokenPrediction(
        table(), name="mine"
    ),
    "SentenceDetection": lambda: pretraining.SentenceDetection(name="sentence"),
    "JointObjective": lambda: pretraining.JointObjective(
        et.ReplacedTokenDetection(name="first"),
        pretraining.SentenceDetection(name="second"),
        0.5,
    ),
    "Discriminator": lambda: pretraining.Discriminator(
        small_encoder(), et.ReplacedTokenDetection()
    ),
    "ReplacedTokenDetector": lambda: et.ReplacedTokenDetector(
        small_encoder(), et.ReplacedTokenDetection()
    ),
    "Electra": lambda: tiny.electra(
        num_layers=1,
        sampler=et.CategoricalSampler(0.5, True),
        sampling_dropout=False,
        gradient_accumulation_steps=2,
        **WEIGHTS,
    ),
    "ReinforceElectra": lambda: adversarial(pretraining.ReinforceElectra),
    "GumbelElectra": lambda: adversarial(
        pretraining.GumbelElectra, gumbel_temperature=0.5
    ),
    "RewardBaseline": lambda: RewardBaseline(name="expected"),
    "UnigramGenerator": lambda: pretraining.UnigramGenerator(11),
    "TwoTowerGenerator": lambda: pretraining.TwoTowerGenerator(
        small_encoder("left", "left_to_right"),
        small_encoder("right", "right_to_left"),
        special_ids=(2, 3),
        seed=4,
    ),
    "NoiseContrastiveEstimation": lambda: pretraining.NoiseContrastiveEstimation(
        name="mine"
    ),
    "EnergyModel": lambda: pretraining.EnergyModel(
        small_encoder(), pretraining.NoiseContrastiveEstimation()
    ),
    "Electric": lambda: tiny.two_tower(pretraining.Electric, num_layers=1, **WEIGHTS),
    "AdamW": lambda: et.training.AdamW(
        1e-3,
        weight_decay=0.1,
        beta_1=0.8,
        beta_2=0.99,
        epsilon=1e-5,
        bias_correction=True,
        clip_norm=2.0,
        exclude_from_weight_decay=("bias",),
        learning_rate_multipliers={"kernel": 0.5},
        name="mine",
    ),
    "LinearChange": lambda: pretraining.LinearChange(0.0, 0.5, 10, begin=3),
    "ExponentialDecay": lambda: pretraining.ExponentialDecay(2.0, 1.0, 5.0),
    "FitSchedule": lambda: et.training.FitSchedule(
        0.01, warmup_proportion=0.2, assigned=0.5
    ),
    "WarmupPolynomialDecay": lambda: et.training.WarmupPolynomialDecay(
        1e-3,
        10,
        warmup_steps=2,
        power=2.0,
        end_learning_rate=1e-5,
        combine="sequential",
    ),
    "ClassificationHead": lambda: tasks.ClassificationHead(8, 3, **HEAD),
    "HiddenClassificationHead": lambda: HiddenClassificationHead(8, 3, **HEAD),
    "IndependentSpanHead": lambda: IndependentSpanHead(8, **SPANS),
    "SpanHead": lambda: SpanHead(8, **SPANS),
    "TaggingHead": lambda: TaggingHead(8, 3, **HEAD),
    "TaskModel": lambda: tasks.TaskModel(
        small_encoder(), tasks.ClassificationHead(8, 3), seed=4, name="mine"
    ),
    "TextClassifier": lambda: text_model(
        et.TextClassifier,
        tasks.ClassificationHead(8, 2),
        "classification",
        labels=["x", "y"],
    ),
    "TokenClassifier": lambda: text_model(
        et.TokenClassifier, TaggingHead(8, 2), "tagging", labels=["B-X", "O"]
    ),
    "QuestionAnswering": lambda: text_model(
        et.QuestionAnswering, SpanHead(8), "question_answering", beam_size=3
    ),
}
ABSTRACT = {pretraining.PretrainingModel, pretraining.Objective, Generator, TextModel}
KINDS = (
    keras.layers.Layer,
    keras.optimizers.Optimizer,
    keras.optimizers.schedules.LearningRateSchedule,
)


def modules():
    for found in pkgutil.walk_packages(et.__path__, "electra_tf."):
        yield importlib.import_module(found.name)


def test_every_keras_class_is_registered_and_has_an_example():
    classes = {
        value
        for module in modules()
        for name, value in vars(module).items()
        if inspect.isclass(value)
        and issubclass(value, KINDS)
        and value.__module__ == module.__name__
        and not name.startswith("_")
    } - ABSTRACT
    names = {cls: keras.saving.get_registered_name(cls) for cls in classes}
    assert names == {cls: f"electra_tf>{cls.__name__}" for cls in names}
    assert {cls.__name__ for cls in names} == EXAMPLES.keys()


@pytest.mark.parametrize("name", EXAMPLES)
def test_configs_round_trip(name):
    """The config contains every constructor argument and restores it."""
    original = EXAMPLES[name]()
    config = json.loads(json.dumps(original.get_config()))
    # An inherited constructor is tested with its own class.
    own = vars(type(original)).get("__init__", object.__init__)
    for each in list(inspect.signature(own).parameters.values())[1:]:
        if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL):
            # An example with the default would not notice a lost argument.
            assert config[each.name] != each.default or each.name == "name"
    copy = check_config(original)
    shared = set(map(id, variables(copy))) & set(map(id, variables(original)))
    assert not shared
    assert len(variables(copy)) == len(variables(original))


def variables(value):
    """Variables of a layer or optimizer, and of the layer's lender."""
    lender = getattr(value, "lender", None)
    own = getattr(value, "variables", [])
    return [*own, *(lender.variables if lender else [])]


@pytest.mark.slow
def test_importing_the_api_registers_every_class(monkeypatch):
    """Loading models needs only the API; the package alone does not import Keras."""
    code = (
        "import sys, electra_tf as et; "
        "assert not {'tensorflow', 'keras', 'numpy'} & sys.modules.keys(); "
        "assert 'Electra' in dir(et); et.load; import keras; "
        "print(*keras.saving.get_custom_objects(), sep='\\n')"
    )
    # TensorFlow's log is off unless the user sets its level.
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)
    done = python("-c", code)
    assert (done.returncode, done.stderr) == (0, "")
    list(modules())
    known = keras.saving.get_custom_objects()
    ours = {name for name in known if name.startswith("electra_tf>")}
    assert ours <= set(done.stdout.split())
