import math

import pytest

from electra_tf.comparison.store import Store


def run(system="electra", seed=0, **values):
    return {"kind": "pretrain", "system": system, "seed": seed, "steps": 3, **values}


def probe(system="electra", seed=0, point=1.0, name="cola", **values):
    about = {"kind": "probe", "system": system, "seed": seed}
    return {**about, "point": point, "probe": name, "score": 50.0, **values}


SETTINGS = {
    "systems": {"electra": {"rate": 0.1, "norm": math.inf}, "mlm": {"rate": 0.2}},
    "probes": {"cola": {"epochs": 3}},
    "about": {"commit": "a"},
}


def changed(kind, name, **values):
    return {**SETTINGS, kind: {**SETTINGS[kind], name: values}}


@pytest.fixture
def store(tmp_path):
    found = Store(tmp_path)
    found.check(SETTINGS)
    for system in ("electra", "mlm"):
        folder = found.run_folder(system, 0)
        folder.mkdir(parents=True)
        (folder / "encoder.keras").write_text(system)
        found.add(run(system))
        found.add(probe(system))
        found.add(probe(system, name="sst"))
    return found


def test_lines_are_found_again_in_a_new_process_and_the_later_one_counts(store):
    store.add(probe(score=60.0))
    again = Store(store.folder)
    assert again.rows("pretrain") == [run("electra"), run("mlm")]
    assert again.find("mlm", 0, "sst") == probe("mlm", name="sst")
    assert again.find("mlm", 1) is None
    assert again.find("electra", 0, "cola")["score"] == 60


def test_rows_of_other_points_of_a_run_are_kept_and_ignored(store):
    """Earlier versions also probed encoders within a run."""
    store.add(probe("late", point=0.5))
    again = Store(store.folder)
    assert again.find("late", 0, "cola") is None
    again.check(SETTINGS)
    assert '"point": 0.5' in store.path.read_text()


def test_failures_are_kept_apart_and_healed_by_success(store):
    store.add(run("new", failure="ran out of memory"))
    again = Store(store.folder)
    assert again.find("new", 0) is None
    assert [row["system"] for row in again.failures()] == ["new"]
    assert len(again.rows("pretrain")) == 2
    again.add(run("new"))
    assert not again.failures()


def test_the_same_settings_and_new_systems_go_on(store):
    more = changed("systems", "new", rate=7)
    for settings in (SETTINGS, more, SETTINGS, {**SETTINGS, "about": {}}):
        store.check(settings)
    # The store keeps the settings of systems that later configs omit.
    for kind, name, values, message in (
        ("systems", "new", {"rate": 8}, "new: --rate was 7, now 8"),
        ("probes", "cola", {}, r"cola: --epochs was 3, now \(absent\)"),
    ):
        with pytest.raises(ValueError, match=rf"{message}\n.* another name"):
            store.check(changed(kind, name, **values))


def test_a_flag_that_was_not_noted_then_counts_as_unchanged(store):
    before = store.path.read_text()
    store.check(changed("systems", "mlm", rate=0.2, init_from="a"))
    assert store.path.read_text() == before
    # The check above stores the missing flag.
    with pytest.raises(ValueError, match="mlm: --init_from was a, now b"):
        store.check(changed("systems", "mlm", rate=0.2, init_from="b"))


def test_a_flag_that_was_removed_since_then_had_its_default(store):
    for value in ("stop", "skip"):
        lines = changed("systems", value, rate=1, damaged_records=value)
        store.check(lines)
    store.check(changed("systems", "stop", rate=1))
    with pytest.raises(ValueError, match="skip: --damaged_records was skip, now stop"):
        store.check(changed("systems", "skip", rate=1))
