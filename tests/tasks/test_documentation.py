import pytest

from electra_tf.tasks.documentation import PackageParagraphs


def package(root, name, modules, paragraphs=3):
    folder = root / name
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    for number in range(modules):
        texts = "\n\n".join(
            f"Paragraph {number} {index} of {name}." for index in range(paragraphs)
        )
        (folder / f"m{number}.py").write_text(f'"""{texts}"""\n')


def test_modules_are_on_one_side_and_classes_balanced(tmp_path):
    package(tmp_path, "big", 20)
    for number in (1, 2):
        (tmp_path / "big" / f"same{number}.py").write_text('"""Shared words of it."""')
    package(tmp_path, "other", 10)
    package(tmp_path, "small", 1)
    options = {"num_packages": 2, "root": str(tmp_path)}

    def paragraphs(text):
        return text.split("\n\n")

    every = PackageParagraphs(paragraphs, **options)
    texts = [e.texts[0] for e in every("train") + every("dev")]
    assert texts.count("Shared words of it.") == 1
    source = PackageParagraphs(paragraphs, per_package=24, **options)
    train, dev = source("train"), source("dev")
    assert {e.label for e in train} == {e.label for e in dev} == {"big", "other"}
    assert sum(e.label == "big" for e in train + dev) == 24

    modules = ({(e.label, e.texts[0].split()[1]) for e in s} for s in (train, dev))
    assert not set.intersection(*modules)
    assert 0.1 < len(dev) / len(train + dev) < 0.4
    assert source("train") == train
    (tmp_path / "alone").mkdir()
    package(tmp_path / "alone", "one", 2)
    with pytest.raises(ValueError, match="at least 2"):
        PackageParagraphs(paragraphs, root=str(tmp_path / "alone"))("train")
