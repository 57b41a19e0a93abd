"""The tokenizer of a Hugging Face folder: vocabulary and casing, both ways."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from electra_tf.data.tokenizer import MAX_WORD_LENGTH
from electra_tf.data.vocabulary import Vocabulary
from electra_tf.interop.tensor_files import read_json

OUTPUTS = ("vocab.txt", "tokenizer.json", "tokenizer_config.json")


@dataclasses.dataclass(frozen=True)
class Tokenizer:
    """What a folder says of its tokenizer; None where it says nothing.

    Attributes:
        vocabulary: The tokens.
        lower_case: Whether text is lower-cased.
        strip_accents: Whether accents are stripped.
        max_length: Most tokens that the model is meant for.
        notes: Warnings: what it does otherwise than `WordPiece`.
    """

    vocabulary: Vocabulary | None
    lower_case: bool | None
    strip_accents: bool | None
    max_length: int | None
    notes: tuple[str, ...]


def read_tokenizer(folder: Path) -> Tokenizer:
    """Reads vocab.txt or tokenizer.json, tokenizer_config.json and added tokens.

    Raises:
        ValueError: A file is damaged, or the tokenizer is not WordPiece.
    """
    whole = read_json(folder / "tokenizer.json")
    config = read_json(folder / "tokenizer_config.json")
    normalizer = whole.get("normalizer") or {}
    # As `transformers`: the config wins over the normalizer.
    stated = {
        "lower_case": config.get("do_lower_case", normalizer.get("lowercase")),
        "strip_accents": config.get("strip_accents", normalizer.get("strip_accents")),
    }
    chinese = config.get(
        "tokenize_chinese_chars", normalizer.get("handle_chinese_chars", True)
    )
    words = config.get("word_tokenizer_type", "basic")
    if stated["strip_accents"] is None:
        stated["strip_accents"] = stated["lower_case"]
    notes = []
    if stated["strip_accents"] and stated["lower_case"] is False:
        notes.append("accents are stripped without lower-casing; here they are kept")
        stated["strip_accents"] = False
    if not chinese:
        notes.append("CJK characters are not split; here each is a word")
    if words != "basic":
        notes.append(f"words are found by {words!r}; here at spaces and punctuation")
    length = config.get("model_max_length")
    added = _added_tokens(folder, whole)
    vocabulary = _vocabulary(folder, whole, added)
    if vocabulary:
        words = [token for token in added if token not in vocabulary.special_tokens]
        if words:
            notes.append(
                f"{len(words)} added tokens ({', '.join(words[:3])}, ...) are found "
                "anywhere in the text; here where they are whole words"
            )
    return Tokenizer(
        vocabulary,
        **stated,
        # `transformers` writes 1e30 for "unknown".
        max_length=int(length) if length and length < 10**9 else None,
        notes=tuple(f"warning: the tokenizer differs: {note}" for note in notes),
    )


def _added_tokens(folder, whole):
    """Ids of tokens that were added to a vocabulary, by token."""
    listed = {token["content"]: token["id"] for token in whole.get("added_tokens", ())}
    return listed | read_json(folder / "added_tokens.json")


def _vocabulary(folder, whole, added):
    path, model = folder / "tokenizer.json", whole.get("model", {})
    if (folder / "vocab.txt").is_file():
        path = folder / "vocab.txt"
        ids = dict(Vocabulary.load(path).ids)
    elif not whole:
        return None
    elif model.get("type") != "WordPiece" or not isinstance(model.get("vocab"), dict):
        raise ValueError(
            f"{path} is a {model.get('type')} tokenizer; ELECTRA here reads WordPiece."
        )
    else:
        ids = dict(model["vocab"])
    ids |= added
    tokens = sorted(ids, key=ids.get)
    if [ids[token] for token in tokens] != list(range(len(tokens))):
        raise ValueError(
            f"{path}: with its added tokens, ids are not 0 to {len(tokens) - 1}, each "
            "once."
        )
    try:
        return Vocabulary(tuple(tokens))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def write_tokenizer(
    folder: Path,
    vocabulary: Vocabulary,
    *,
    lower_case: bool,
    strip_accents: bool,
    max_length: int,
) -> None:
    """Writes vocab.txt, tokenizer.json and tokenizer_config.json."""
    vocabulary.save(folder / "vocab.txt")
    casing = {"lower_case": lower_case, "strip_accents": lower_case and strip_accents}
    _fast_tokenizer(vocabulary, **casing).save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "ElectraTokenizer",
        "do_lower_case": casing["lower_case"],
        "strip_accents": casing["strip_accents"],
        "tokenize_chinese_chars": True,
        "model_max_length": max_length,
        **{f"{name}_token": token for name, token in vocabulary.names.items()},
    }
    text = json.dumps(config, indent=2) + "\n"
    (folder / "tokenizer_config.json").write_text(text, "utf-8")


def _fast_tokenizer(vocabulary, lower_case, strip_accents):
    import tokenizers
    from tokenizers import decoders, normalizers, pre_tokenizers, processors

    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.WordPiece(
            dict(vocabulary.ids),
            unk_token=vocabulary.unk,
            max_input_chars_per_word=MAX_WORD_LENGTH,
        )
    )
    tokenizer.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=True,
        strip_accents=strip_accents,
        lowercase=lower_case,
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{vocabulary.cls} $A {vocabulary.sep}",
        pair=f"{vocabulary.cls} $A {vocabulary.sep} $B:1 {vocabulary.sep}:1",
        special_tokens=[
            (vocabulary.cls, vocabulary.cls_id),
            (vocabulary.sep, vocabulary.sep_id),
        ],
    )
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    tokenizer.add_special_tokens(list(vocabulary.special_tokens))
    return tokenizer
