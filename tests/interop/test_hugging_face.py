import dataclasses
import json
import shutil
import types

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from electra_tf.data.tokenizer import WordPiece
from electra_tf.data.vocabulary import Vocabulary
from electra_tf.interop import convert, hugging_face, networks, tokenizer_files
from electra_tf.interop.names import HUGGING_FACE, scatter
from electra_tf.interop.networks import Source
from tests.interop.models import CASES, GOLDEN, assert_golden, assert_same
from tests.tasks.common import UNCASED


@pytest.fixture
def folder(tmp_path):
    """A copy of a golden pair that a test may change."""
    return shutil.copytree(GOLDEN / "projected", tmp_path / "model")


def read(path, **options):
    return hugging_face.read(Source(str(path), **options))


def refused(message, *arguments, **options):
    with pytest.raises(ValueError, match=message):
        read(*arguments, **options)


def change_config(folder, **values):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def change_tensors(folder, change):
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file({name: np.ascontiguousarray(v) for name, v in tensors.items()}, path)


@pytest.mark.parametrize("case", CASES)
def test_outputs_names_and_bits_are_those_of_transformers(case, tmp_path):
    imported = read(GOLDEN / case)
    assert_golden(imported, case)
    hugging_face.write(tmp_path, with_tokenizer(imported))
    for below in (".", "generator"):
        theirs = load_file(GOLDEN / case / below / "model.safetensors")
        np.testing.assert_equal(
            load_file(tmp_path / below / "model.safetensors"), theirs
        )
        config = json.loads((tmp_path / below / "config.json").read_text())
        golden = json.loads((GOLDEN / case / below / "config.json").read_text())
        for key in {*hugging_face.SIZES, "architectures", "model_type"}:
            assert config[key] == golden[key], key
    assert_same(read(tmp_path), imported)


def with_tokenizer(imported, **changes):
    return dataclasses.replace(imported, **{**UNCASED, "trained_length": 12, **changes})


def test_start_and_dropout_travel_along(folder, tmp_path):
    said = {"initializer_range": 0.06, "hidden_dropout_prob": 0.2}
    said["attention_probs_dropout_prob"] = 0.3
    for below in (folder, folder / "generator"):
        change_config(below, **said)
    imported = read(folder)
    encoder = networks.models(imported)["encoder"]
    assert encoder.initializer_range == encoder.embeddings.initializer_range == 0.06
    assert (encoder.dropout, encoder.attention_dropout) == (0.2, 0.3)
    tower = networks.encoder_tower(encoder, "the encoder")
    assert tower.sizes == imported.discriminator.sizes
    hugging_face.write(tmp_path, with_tokenizer(imported))
    config = json.loads((tmp_path / "config.json").read_text())
    assert config | said == config


def test_only_one_tower(tmp_path):
    generator = read(GOLDEN / "projected" / "generator")
    assert list(generator.towers) == ["generator"]
    vocabulary = read(GOLDEN / "projected").vocabulary
    hugging_face.write(tmp_path, with_tokenizer(generator, vocabulary=vocabulary))
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["architectures"] == ["ElectraForMaskedLM"]
    assert not (tmp_path / "generator").exists()
    assert_same(read(tmp_path), generator)
    only = read(GOLDEN / "projected", only="discriminator").towers
    assert list(only) == ["discriminator"]


def test_pair_of_two_folders(tmp_path):
    disc = shutil.copytree(GOLDEN / "projected", tmp_path / "disc")
    gen = shutil.move(disc / "generator", tmp_path / "gen")
    assert list(read(disc).towers) == ["discriminator"]
    refused("discriminator and a generator, in this", gen, generator=str(disc))
    bare = shutil.copytree(disc, tmp_path / "bare")
    (bare / "vocab.txt").unlink()
    (bare / "tokenizer.json").unlink(missing_ok=True)
    found = read(bare, generator=str(gen))
    assert (len(found.towers), found.vocabulary) == (2, None)
    swapped = [*read(disc).vocabulary.tokens[:-2], "zz", "##zz"]
    (gen / "vocab.txt").write_text("\n".join(swapped))
    refused("have different vocabularies", disc, generator=str(gen))
    (gen / "vocab.txt").unlink()
    change_tensors(gen, lambda t: t["electra.embeddings.LayerNorm.bias"].fill(1))
    refused(r"do not share their embeddings; .*beta", disc, generator=str(gen))


def test_bare_encoder_has_no_prefix(folder, tmp_path):
    shutil.rmtree(folder / "generator")
    tensors = load_file(folder / "model.safetensors").items()
    encoder = {n: array for n, array in tensors if n.startswith("electra.")}
    bare = {name.removeprefix("electra."): array for name, array in encoder.items()}
    save_file(bare, folder / "model.safetensors")
    imported, whole = read(folder), read(GOLDEN / "projected", only="discriminator")
    tower = dataclasses.replace(whole.discriminator, head={})
    assert_same(imported, dataclasses.replace(whole, discriminator=tower))
    out = tmp_path / "out"
    out.mkdir()
    hugging_face.write(out, with_tokenizer(imported))
    config = json.loads((out / "config.json").read_text())
    assert config["architectures"] == ["ElectraModel"]
    assert load_file(out / "model.safetensors").keys() == bare.keys()


def test_the_encoder_of_a_fine_tuned_model():
    """Its head is left and named; its tokenizer has no vocab.txt."""
    imported = read(GOLDEN / "classifier", only="discriminator")
    assert imported.vocabulary == read(GOLDEN / "projected").vocabulary
    assert (imported.lower_case, imported.strip_accents) == (False, False)
    assert imported.discriminator.head == {}
    layers, leaves = ("dense", "out_proj"), ("weight", "bias")
    names = {f"classifier.{layer}.{leaf}" for layer in layers for leaf in leaves}
    assert set(imported.not_taken) == names


def test_a_linear_layer_over_the_text_is_no_tagger(folder):
    shutil.rmtree(folder / "generator")

    def change(tensors):
        for name in [n for n in tensors if n.startswith("discriminator_")]:
            del tensors[name]
        tensors["classifier.weight"] = np.ones([3, 16], np.float32)
        tensors["classifier.bias"] = np.ones([3], np.float32)

    change_tensors(folder, change)
    change_config(folder, architectures=["ElectraForTokenClassification"])
    assert read(folder).task.kind == "tagging"
    summary = {"sequence_summary.summary.bias": np.ones([16], np.float32)}
    change_tensors(folder, lambda tensors: tensors.update(summary))
    for name in ("ElectraForSequenceClassification", "ElectraForMultipleChoice"):
        change_config(folder, architectures=[name])
        imported = read(folder)
        assert imported.task is None
        others = {"classifier.weight", "classifier.bias", *summary}
        assert set(imported.not_taken) == others


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"hidden_act": "gelu_new"}, "hidden_act is 'gelu_new', not 'gelu'"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ({"layer_norm_eps": 1e-5}, "layer_norm_eps"),
        ({"is_decoder": True}, "is_decoder"),
        ({"model_type": "bert"}, "model_type is 'bert'"),
        ({"hidden_size": 64}, "has the shape .*, not .*64"),
        ({"num_attention_heads": "2"}, r'heads is "2", expected int'),
    ],
)
def test_variants_and_configs_of_other_weights_are_refused(folder, values, message):
    change_config(folder, **values)
    refused(message, folder)


def test_wrong_tensors_are_named(folder):
    key = "electra.encoder.layer.1.intermediate.dense.bias"
    change_tensors(folder, lambda t: t.update(extra=np.zeros(2, np.float32)))
    refused("not part of ELECTRA: extra", folder)
    change_tensors(folder, lambda t: (t.pop("extra"), t.update({key: t[key][:3]})))
    refused(f"{key} has the shape", folder)
    change_tensors(folder, lambda t: t.pop(key))
    refused(f"has no tensor {key}", folder)
    (folder / "model.safetensors").write_bytes(b"nothing")
    refused("is damaged", folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(OSError, match=r"none of model\.safetensors"):
        read(folder)


def test_arrays_without_a_place_are_refused():
    imported = read(GOLDEN / "projected", only="discriminator")
    tower = imported.discriminator
    more = dict(tower.encoder) | {"relative_positions": np.zeros(3)}
    with pytest.raises(ValueError, match="no place for relative_positions"):
        scatter(HUGGING_FACE.encoder(tower.sizes), more)
    changed = dataclasses.replace(tower, encoder=more)
    with pytest.raises(ValueError, match="differs in relative_positions"):
        networks.models(dataclasses.replace(imported, discriminator=changed))


def test_an_output_matrix_must_be_the_word_table(folder):
    words = "electra.embeddings.word_embeddings.weight"
    key = "generator_lm_head.weight"
    change_config(folder / "generator", tie_word_embeddings=False)
    refused(f"false, and {key} is missing", folder)
    # The discriminator has no output matrix.
    assert read(folder, only="discriminator").towers.keys() == {"discriminator"}
    change_tensors(folder / "generator", lambda t: t.update({key: t[words]}))
    assert_same(read(folder), read(GOLDEN / "projected"))
    change_tensors(folder / "generator", lambda t: t.update({key: t[words] * 2}))
    refused("not the word table", folder)


def test_half_precision(folder):
    name = "electra.embeddings.word_embeddings.weight"
    tensors = load_file(folder / "model.safetensors")
    rounded = tensors[name].astype(ml_dtypes.bfloat16)
    change_tensors(folder, lambda tensors: tensors.update({name: rounded}))
    found = read(folder, only="discriminator").discriminator.encoder
    words = found["embeddings/word_embeddings"]
    assert words.dtype == np.float32
    np.testing.assert_array_equal(words, rounded.astype(np.float32))


def read_tokenizer(folder):
    return types.SimpleNamespace(**tokenizer_files.read_tokenizer(folder))


def tokenizer_json(folder, model=(), **values):
    """Reads the folder with a tokenizer.json of cased text, and these values in it."""
    whole = json.loads((GOLDEN / "classifier" / "tokenizer.json").read_text())
    whole["model"] |= dict(model)
    (folder / "tokenizer.json").write_text(json.dumps(whole | values))
    return read_tokenizer(folder)


def added_token(content, number):
    flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
    return {"content": content, "id": number, **dict.fromkeys(flags, False)}


def tokenizer_config(folder, **values):
    (folder / "tokenizer_config.json").write_text(json.dumps(values))
    return read_tokenizer(folder)


def test_tokens_that_were_added_to_the_vocabulary(folder):
    """`transformers` lists them in tokenizer.json, formerly in added_tokens.json."""
    size = len(Vocabulary.load(folder / "vocab.txt"))
    listed = [added_token("[PAD]", 0), added_token("covid19", size)]
    (folder / "added_tokens.json").write_text(json.dumps({"[DOC]": size + 1}))
    found = tokenizer_json(folder, added_tokens=listed)
    assert found.vocabulary.tokens[size:] == ("covid19", "[DOC]")
    (note,) = found.notes
    assert "2 added tokens (covid19, [DOC], ...)" in note
    (folder / "added_tokens.json").write_text(json.dumps({"[DOC]": size + 2}))
    with pytest.raises(ValueError, match=r"r\.json: with its added tokens, ids"):
        read_tokenizer(folder)


def test_absurd_headers_are_refused(folder):
    path = folder / "model.safetensors"
    for shape, offsets in (
        ([2**62, 2**62], [0, 8]),
        ([2**40], [0, 2**42]),
        ([2], [8, 0]),
        ([-1], [0, 8]),
    ):
        entry = {"dtype": "F32", "shape": shape, "data_offsets": offsets}
        text = json.dumps({"a": entry}).encode()
        for size in (len(text), 2**30, 2**62):
            path.write_bytes(size.to_bytes(8, "little") + text + bytes(8))
            refused(r"model\.safetensors is damaged", folder)


def test_special_tokens_of_other_names(folder):
    path = folder / "vocab.txt"
    original = Vocabulary.load(path)
    theirs = {"[PAD]": "<pad>", "[UNK]": "<unk>", "[CLS]": "<s>", "[SEP]": "</s>"}
    path.write_text("".join(f"{theirs.get(x, x)}\n" for x in original.tokens))
    with pytest.raises(ValueError, match=r"special tokens missing: \[PAD\], \[UNK\]"):
        read_tokenizer(folder)
    names = {"unk_token": "<unk>", "cls_token": {"content": "<s>", "lstrip": False}}
    names |= {"sep_token": "</s>", "additional_special_tokens": ["<x>"]}
    listed = {**names, "pad_token": "[PAD]"}
    (folder / "special_tokens_map.json").write_text(json.dumps(listed))
    # tokenizer_config.json takes precedence, as in `transformers`.
    found = tokenizer_config(folder, pad_token="<pad>")
    assert found.vocabulary == original
    (note,) = found.notes
    assert "here <pad> as [PAD], <unk> as [UNK], <s> as [CLS], </s> as [SEP]" in note
    # The same holds if tokenizer.json contains the tokens.
    path.unlink()
    vocab = {theirs.get(x, x): index for x, index in original.ids.items()}
    model = {"vocab": vocab, "unk_token": "<unk>"}
    assert tokenizer_json(folder, model, added_tokens=[]).vocabulary == original


def test_tokenizer_json_takes_precedence_over_vocab_txt(folder):
    """As in `transformers`."""
    ids = dict(Vocabulary.load(folder / "vocab.txt").ids)
    ids["the"], ids["a"] = ids["a"], ids["the"]
    found = tokenizer_json(folder, {"vocab": ids})
    assert found.vocabulary.ids == ids
    assert "vocab.txt and tokenizer.json have different tokens" in found.notes[0]
    (folder / "vocab.txt").unlink()
    assert read_tokenizer(folder).notes == ()
    with pytest.raises(ValueError, match="is a BPE tokenizer"):
        tokenizer_json(folder, {"type": "BPE", "vocab": {}, "merges": []})
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match=r"tokenizer\.json is damaged: Model missing"):
        read_tokenizer(folder)


def sequence(*steps):
    return {"type": "Sequence", "normalizers": steps}


NFD, LOWERCASE, STRIP = ({"type": x} for x in ("NFD", "Lowercase", "StripAccents"))
BERT = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True}
BERT |= {"strip_accents": None, "lowercase": True}


@pytest.mark.parametrize(
    ("normalizer", "lower_case", "strip_accents", "has_note"),
    [
        (None, False, False, True),
        (sequence(NFD, sequence(LOWERCASE), STRIP), True, True, True),
        (sequence(BERT), True, True, False),
        (BERT | {"strip_accents": False}, True, False, False),
        (BERT | {"lowercase": False}, False, False, False),
        (BERT | {"lowercase": False, "strip_accents": True}, False, False, True),
        ({"type": "NFKC"}, False, False, True),
        (sequence({"type": "NFKC"}, BERT), True, True, True),
    ],
)
def test_normalizers(folder, normalizer, lower_case, strip_accents, has_note):
    found = tokenizer_json(folder, normalizer=normalizer)
    assert (found.lower_case, found.strip_accents) == (lower_case, strip_accents)
    assert len(found.notes) == has_note
    assert len(tokenizer_config(folder, do_lower_case=not lower_case).notes) == 1
    # null means unset.
    assert tokenizer_config(folder, do_lower_case=None).lower_case is lower_case


def test_other_words_are_reported_and_another_prefix_is_refused(folder):
    for splitter, count in (("BertPreTokenizer", 0), ("WhitespaceSplit", 1)):
        found = tokenizer_json(folder, pre_tokenizer={"type": splitter})
        assert len(found.notes) == count
        assert all("the words of" in note for note in found.notes)
    assert len(tokenizer_json(folder, pre_tokenizer=None).notes) == 1
    with pytest.raises(ValueError, match="is a WordPiece tokenizer with the prefix ''"):
        tokenizer_json(folder, {"continuing_subword_prefix": ""})


def test_tokens_and_lengths_that_cannot_be_written_are_refused(folder):
    size = len(Vocabulary.load(folder / "vocab.txt"))
    for token in ("a\nb", "New York"):
        (folder / "added_tokens.json").write_text(json.dumps({token: size}))
        with pytest.raises(ValueError, match="has a space, a line break"):
            read_tokenizer(folder)
    (folder / "added_tokens.json").unlink()
    for length in (-5, 0, 0.5):
        with pytest.raises(ValueError, match=f"model_max_length is {length}"):
            tokenizer_config(folder, model_max_length=length)


def test_pickled_weights(folder):
    """Pickles hold old names of LayerNorms and the tied output matrix."""
    torch = pytest.importorskip("torch")
    words = "electra.embeddings.word_embeddings.weight"
    key = "generator_lm_head.weight"
    change_tensors(folder / "generator", lambda t: t.update({key: t[words]}))
    for below in (folder, folder / "generator"):
        tensors = load_file(below / "model.safetensors").items()
        old = {n: torch.nn.Parameter(torch.from_numpy(x)) for n, x in tensors}
        for ours, theirs in ("weight", "gamma"), ("bias", "beta"):
            ours, theirs = f"LayerNorm.{ours}", f"LayerNorm.{theirs}"
            old = {n.replace(ours, theirs): x for n, x in old.items()}
        assert old.keys() != dict(tensors).keys()
        torch.save(old, below / "pytorch_model.bin")
        (below / "model.safetensors").unlink()
    assert_same(read(folder), read(GOLDEN / "projected"))

    class Evil:
        def __reduce__(self):
            return (print, ("executed",))

    torch.save({"electra.x": Evil()}, folder / "pytorch_model.bin")
    refused(r"pytorch_model\.bin cannot be read", folder)


def test_an_index_of_another_program_beside_the_model(folder):
    (folder / "faiss.index").write_bytes(b"IxF2" + bytes(60))
    assert convert.find_format(Source(str(folder))) is hugging_face


def test_names_on_the_hub(tmp_path, monkeypatch):
    assert hugging_face.detect(Source("google/electra-small-discriminator"))
    for path in ("a/b/c", "single", str(GOLDEN.parent), str(tmp_path)):
        assert not hugging_face.detect(Source(path))
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(OSError, match="cannot be downloaded from the Hugging"):
        read("someone/electra-tiny")


def test_what_a_tokenizer_config_says(folder):
    found = tokenizer_config(folder, do_lower_case=True, model_max_length=512)
    assert (found.lower_case, found.strip_accents) == (True, True)
    assert found.trained_length == 512
    found = tokenizer_config(folder, do_lower_case=True, strip_accents=False)
    assert (found.strip_accents, found.trained_length, found.notes) == (False, None, ())
    assert tokenizer_config(folder, model_max_length=10**30).trained_length is None
    for odd in (
        {"do_lower_case": False, "strip_accents": True},
        {"tokenize_chinese_chars": False},
        {"word_tokenizer_type": "mecab"},
    ):
        (note,) = tokenizer_config(folder, **odd).notes
        assert note.startswith("warning: the tokenizer differs")


@pytest.mark.parametrize("lower_case", [True, False])
def test_exported_tokenizer_splits_as_ours(tmp_path, lower_case):
    from tokenizers import Tokenizer

    imported = with_tokenizer(read(GOLDEN / "projected"), lower_case=lower_case)
    vocabulary = imported.vocabulary
    tokenizer_files.write_tokenizer(tmp_path, imported)
    texts = ["The cats, walking.", "thé dogs sees\ta CAT", "a" + "s" * 150, "又 cat又"]
    ours = WordPiece(vocabulary, lower_case=lower_case, strip_accents=True)
    theirs = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for text, ids in zip(texts, ours.encode(texts), strict=True):
        assert theirs.encode(text, add_special_tokens=False).ids == list(ids), text
    pair = theirs.encode("the cat", "a dog")
    cls, sep = vocabulary.cls_id, vocabulary.sep_id
    assert [pair.ids[i] for i in (0, 3, 6)] == [cls, sep, sep]
    assert pair.type_ids == [0] * 4 + [1] * 3
    back = read_tokenizer(tmp_path)
    assert back.vocabulary == vocabulary
    assert (back.lower_case, back.strip_accents) == (lower_case, lower_case)
    assert back.trained_length == 12
