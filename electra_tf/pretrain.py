"""One pretraining run: text in, a pretrained discriminator out.

``run_pretraining.py`` comes here. The order of a start is: the folder's own newest
whole checkpoint; else ``--init_from``; else fresh weights.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import keras
import tensorflow as tf

from electra_tf import build, build_training, overwrite, results, warm_start
from electra_tf.config import PretrainConfig
from electra_tf.pretraining.phases import Phase, remaining
from electra_tf.training import callbacks, checkpoints
from electra_tf.training.distribution import is_chief, strategy_for

# What schedulers read as "stopped early, run me again" (EX_TEMPFAIL).
EXIT_STOPPED = 75

Log = Callable[[str], None]


def run(
    config: PretrainConfig,
    log: Log = print,
    callbacks_from: Callable[[int], list[keras.callbacks.Callback]] = lambda step: [],
) -> int:
    """Runs, resumes or completes the pretraining that ``config`` describes.

    Args:
        config: everything about the run.
        log: receives one message per call.
        callbacks_from: first step of a ``fit``, one per phase -> more callbacks for
            it, which run before a checkpoint is saved.

    Returns:
        The process's exit code: 0, or ``EXIT_STOPPED`` after a signal.

    Raises:
        ValueError: if text, records, vocabulary or settings do not fit.
        OSError: if files cannot be read or written, or all checkpoints are damaged.
        FloatingPointError: if the loss or a gradient stops being finite.
    """
    for warning in config.warnings():
        log(f"warning: {warning}")
    strategy = strategy_for(config.run.distribution, tpu=config.run.tpu)
    chief = is_chief(strategy)
    model_dir = Path(config.run.model_dir)
    starts_anew = config.run.overwrite
    config = warm_start.with_vocabulary(config)
    (overwrite.check if starts_anew else results.check_flags)(config)
    warm_start.check(config)
    if config.run.dry_run:
        apart = overwrite.dry(config, log) if starts_anew else None
        with apart or contextlib.nullcontext(config) as config:
            data, phases = _build(config, strategy, log)
            log(results.dry_run_report(config, phases[-1].model, data))
        return 0

    if starts_anew and chief:
        overwrite.delete_records(config)
    data, phases = _build(config, strategy, log)
    model = phases[-1].model
    settings = results.settings(config, data)
    if starts_anew:
        # Weights to start from may be refused too, so they come first.
        _initialize(config, model, data, log)
        if chief:
            overwrite.delete(config)
    else:
        ignore = results.may_differ(type(config))
        checkpoints.check_config(model_dir, settings, ignore=ignore)
    store = checkpoints.CheckpointStore(
        model_dir / "checkpoints",
        _state(phases),
        keep=config.run.keep_checkpoints,
        log=log,
    )
    first_step = 0 if starts_anew else _start(config, model, data, store, log)
    if chief:
        checkpoints.write_config(model_dir, settings)
        data.vocabulary.save(model_dir / "vocab.txt")
    if first_step < config.run.num_train_steps:
        log(results.model_summary(config, model, data))
        session = _Session(config, data, store, chief, log, callbacks_from)
        signal = _train(session, phases, first_step)
        if signal:
            log(f"{signal}: saved and stopped; the same command goes on from here.")
            return EXIT_STOPPED
    else:
        log(f"{model_dir} is trained to its last step, {first_step}; evaluating.")
    for phase in phases:
        phase.release()
    results.finish(config, model, data, log, write=chief)
    return 0


def _build(
    config: PretrainConfig, strategy: tf.distribute.Strategy, log: Log
) -> tuple[build.PretrainingData, list[Phase]]:
    """Data and compiled phases; whatever does not fit is refused here."""
    data = build.pretraining_data(config, log)
    warm_start.check(config, data)
    build.masking(config, data)
    with strategy.scope():
        phases = build.compiled_phases(
            config, len(data.vocabulary), build.special_ids(data.vocabulary)
        )
    return data, phases


def _state(phases: Sequence[Phase]) -> dict[str, tf.Variable]:
    """Everything a checkpoint holds, by name: the whole model, all optimizers."""
    model = phases[-1].model
    state = checkpoints.named_variables(model, model.optimizer)
    for phase in phases[:-1]:
        own = checkpoints.named_variables(phase.model, phase.model.optimizer)
        for name, variable in own.items():
            if name.startswith("optimizer/"):
                state[f"{phase.name}_{name}"] = variable
    return state


def _start(config, model, data, store, log: Log) -> int:
    """Restores, initializes or leaves the weights; returns the steps done."""
    step = store.restore_latest()
    if step is None:
        _initialize(config, model, data, log)
        return 0
    log(f"resuming after step {step}, from {store.directory}")
    return step


def _initialize(config, model, data, log: Log) -> None:
    """Gives a fresh run the weights that it is to start from."""
    if config.run.init_from:
        loaded = warm_start.load(config.run.init_from, model)
        log(f"weights from {config.run.init_from}: {loaded}")
    build_training.initialize_generator(config, model, data, log)


@dataclasses.dataclass(frozen=True)
class _Session:
    """What all phases of a run in this process have in common."""

    config: PretrainConfig
    data: build.PretrainingData
    store: checkpoints.CheckpointStore
    chief: bool
    log: Log
    callbacks_from: Callable[[int], list[keras.callbacks.Callback]]


def _train(session: _Session, phases: Sequence[Phase], first_step: int) -> str | None:
    """Trains to the last step; returns the name of the signal that stopped it."""
    for phase, step, last_step in remaining(phases, first_step):
        if len(phases) > 1:
            session.log(f"phase {phase.name}: steps {step + 1:,} to {last_step:,}")
        phase.set_trainable()
        signal = _fit(session, phase, step, last_step)
        if signal:
            return signal
    return None


def _fit(
    session: _Session, phase: Phase, first_step: int, last_step: int
) -> str | None:
    """Trains one phase; steps are counted over the whole run."""
    config, data, run = session.config, session.data, session.config.run
    counted = {"first_step": first_step}
    sinks = _sinks(session, phase, first_step, last_step) if session.chief else []
    saving = callbacks.CheckpointEvery(
        session.store, run.save_checkpoint_steps, **counted
    )
    logger = callbacks.StepLogger(
        run.log_steps,
        sinks,
        tokens_per_step=run.train_batch_size * config.data.max_seq_length,
        **counted,
    )
    held_out = build.eval_dataset(config, data)
    evaluating = (
        [callbacks.EvaluateEvery(held_out, run.eval_steps, sinks, **counted)]
        if held_out is not None and run.eval_steps
        else []
    )
    guard = callbacks.NonFiniteGuard(store=session.store, **counted)
    more = session.callbacks_from(first_step)
    steps = last_step - first_step
    phase.model.fit(
        # Keras rounds up to whole executions; the last one ends with the data.
        build.train_dataset(config, data, start_step=first_step).take(steps),
        steps_per_epoch=steps,
        verbose=0,
        shuffle=False,
        callbacks=[guard, logger, *evaluating, *more, saving],
    )
    return saving.stopped_by_signal


def _sinks(session: _Session, phase: Phase, first_step: int, last_step: int) -> list:
    """Where the numbers of a phase go."""
    config, log = session.config, session.log
    model_dir = session.store.directory.parent
    counted = {"first_step": first_step}
    phase_begin = last_step - phase.steps
    return [
        callbacks.MetricsLog(model_dir / results.METRICS, **counted),
        callbacks.TensorBoardScalars(model_dir / "tensorboard"),
        callbacks.Progress(config.run.num_train_steps, **counted),
        callbacks.HealthWarnings(
            config.sampled_rate,
            min_steps=phase_begin + min(5000, phase.steps // 2),
            log=lambda text: log(f"warning: {text}"),
        ),
    ]


@contextlib.contextmanager
def clear_errors() -> Iterator[None]:
    """Turns an expected error into one line and exit code 1, without a traceback."""
    try:
        yield
    except KeyboardInterrupt:
        sys.exit("interrupted")
    except tf.errors.OpError as error:
        sys.exit(f"error: {error.message}")
    except (ValueError, OSError, FloatingPointError) as error:
        sys.exit(f"error: {error}")
