"""One pretraining run: text in, a pretrained discriminator out.

``run_pretraining.py`` comes here. The order of a start is: the folder's own newest
whole checkpoint; else ``--init_from``; else fresh weights.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import keras
import tensorflow as tf

from electra_tf import build, results
from electra_tf.config import PretrainConfig
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
        callbacks_from: first step of a ``fit`` -> more callbacks for it, which run
            before a checkpoint is saved.

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
    if config.run.overwrite and chief and not config.run.dry_run:
        results.delete_run(model_dir)
    results.check_flags(config)
    data = build.pretraining_data(config, log)
    settings = results.settings(config, data)
    if not config.run.dry_run:
        ignore = results.may_differ(type(config))
        checkpoints.check_config(model_dir, settings, ignore=ignore)
    with strategy.scope():
        model = build.compiled_model(config, len(data.vocabulary))
    if config.run.dry_run:
        log(results.dry_run_report(config, model, data))
        return 0

    store = checkpoints.CheckpointStore(
        model_dir / "checkpoints",
        checkpoints.named_variables(model, model.optimizer),
        keep=config.run.keep_checkpoints,
        log=log,
    )
    first_step = _start(config, model, store, log)
    if chief:
        checkpoints.write_config(model_dir, settings)
        data.vocabulary.save(model_dir / "vocab.txt")
    if first_step < config.run.num_train_steps:
        log(results.model_summary(config, model, data))
        more = callbacks_from(first_step)
        signal = _train(config, model, data, store, first_step, chief, log, more)
        if signal:
            log(f"{signal}: saved and stopped; the same command goes on from here.")
            return EXIT_STOPPED
    else:
        log(f"{model_dir} is trained to its last step, {first_step}; evaluating.")
    results.finish(config, model, data, log, write=chief)
    return 0


def _start(config, model, store, log: Log) -> int:
    """Restores, initializes or leaves the weights; returns the steps done."""
    step = store.restore_latest()
    if step is not None:
        log(f"resuming after step {step}, from {store.directory}")
        return step
    if config.run.init_from:
        path = Path(config.run.init_from)
        folder = path / "checkpoints"
        weights = checkpoints.named_variables(model)
        trained = {name: v for name, v in weights.items() if v.trainable}
        source = folder if folder.is_dir() else path
        loaded = checkpoints.load_weights(source, trained)
        log(f"weights from {path}: {loaded}")
    return 0


def _train(
    config, model, data, store, first_step: int, chief: bool, log: Log, more=()
) -> str | None:
    """Trains to the last step; returns the name of the signal that stopped it."""
    run = config.run
    model_dir = store.directory.parent
    counted = {"first_step": first_step}
    sinks = []
    if chief:
        sinks = [
            callbacks.MetricsLog(model_dir / results.METRICS, **counted),
            callbacks.TensorBoardScalars(model_dir / "tensorboard"),
            callbacks.Progress(run.num_train_steps, **counted),
            callbacks.HealthWarnings(
                config.masking.mask_rate,
                min_steps=min(5000, run.num_train_steps // 2),
                log=lambda text: log(f"warning: {text}"),
            ),
        ]
    saving = callbacks.CheckpointEvery(store, run.save_checkpoint_steps, **counted)
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
    guard = callbacks.NonFiniteGuard(store=store, **counted)
    model.fit(
        build.train_dataset(config, data, start_step=first_step),
        steps_per_epoch=run.num_train_steps - first_step,
        verbose=0,
        shuffle=False,
        callbacks=[guard, logger, *evaluating, *more, saving],
    )
    return saving.stopped_by_signal


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
