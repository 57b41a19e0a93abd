"""Reads and writes the tokenizer files of a Hugging Face folder."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from electra_tf import files
from electra_tf.data.vocabulary import MAX_WORD_LENGTH, SPECIAL_TOKENS, Vocabulary
from electra_tf.errors import UserError
from electra_tf.interop.networks import Imported

# Optional entries.
_FLAG = bool | None
_TOKENIZER = {
    "normalizer": dict | None,
    "pre_tokenizer": dict | None,
    "added_tokens": (None, [{"content": str, "id": int}]),
    "model": (
        None,
        {
            "type": str | None,
            # A list in tokenizers other than WordPiece.
            "vocab": dict[str, int] | list | None,
            "continuing_subword_prefix": str | None,
        },
    ),
}
_NORMALIZER = {
    **{"type": str | None, "normalizers": list[dict] | None},
    **{"lowercase": _FLAG, "strip_accents": _FLAG, "handle_chinese_chars": _FLAG},
}
# A special token is its name, or an object with its name.
_NAMES = dict.fromkeys(
    ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"),
    (None, str, {"content": str}),
)
_CONFIG = {
    **_NAMES,
    **{"do_lower_case": _FLAG, "strip_accents": _FLAG},
    **{"tokenize_chinese_chars": _FLAG, "word_tokenizer_type": str | None},
    "model_max_length": float | None,
    "added_tokens_decoder": dict[str, dict] | None,
}
OUTPUTS = ("vocab.txt", "tokenizer.json", "tokenizer_config.json")


@dataclasses.dataclass(frozen=True)
class Tokenizer:
    """Fields of ``Imported``; ``notes`` are differences from ``WordPiece``."""

    vocabulary: Vocabulary | None
    lower_case: bool | None
    strip_accents: bool | None
    trained_length: int | None
    notes: tuple[str, ...]


def read_tokenizer(folder: Path) -> Tokenizer:
    """Reads the tokenizer of a folder; renames special tokens, such as ``<pad>``."""
    whole = files.read_json(folder / "tokenizer.json", {}, shape=_TOKENIZER)
    config_path = folder / "tokenizer_config.json"
    config = files.read_json(config_path, {}, shape=_CONFIG)
    notes: list[str] = []
    normalizer = _normalizer(whole, folder / "tokenizer.json", notes)
    for theirs, ours in ("do_lower_case", "lowercase"), ("strip_accents",) * 2:
        values = {config.get(theirs), normalizer.get(ours)} - {None}
        if len(values) > 1:
            notes.append(
                f"{theirs} is {config[theirs]}, but not in tokenizer.json; here it is"
            )
    # As in `transformers`, the config takes precedence, and accents of lower-cased text
    # are stripped by default.
    lower_case = _first(config.get("do_lower_case"), normalizer.get("lowercase"))
    given = (config.get("strip_accents"), normalizer.get("strip_accents"))
    strip_accents = _first(*given, lower_case)
    if strip_accents and lower_case is False:
        notes.append("accents are stripped without lower-casing; here they are kept")
        strip_accents = False
    splits_cjk = normalizer.get("handle_chinese_chars", True)
    if not config.get("tokenize_chinese_chars", splits_cjk):
        notes.append("CJK characters are not split; here each is a word")
    word_finder = config.get("word_tokenizer_type", "basic")
    if word_finder == "basic" and "pre_tokenizer" in whole:
        splitter = (whole["pre_tokenizer"] or {}).get("type")
        word_finder = "basic" if splitter == "BertPreTokenizer" else splitter
    if word_finder != "basic":
        notes.append(f"{word_finder!r} splits words; here spaces and punctuation do")
    added = {token["content"]: token["id"] for token in whole.get("added_tokens") or ()}
    added |= files.read_json(folder / "added_tokens.json", {}, shape=dict[str, int])
    for index, token in (config.get("added_tokens_decoder") or {}).items():
        if not index.isdecimal() or not isinstance(token.get("content"), str):
            raise UserError(f"{config_path}: added_tokens_decoder has the id {index!r}")
        added[token["content"]] = int(index)
    listed = files.read_json(folder / "special_tokens_map.json", {}, shape=_NAMES)
    special = {}
    for key, ours in zip(_NAMES, SPECIAL_TOKENS, strict=True):
        theirs = config.get(key, listed.get(key)) or ours
        special[theirs if isinstance(theirs, str) else theirs["content"]] = ours
    vocabulary = _vocabulary(folder, whole, added, special)
    if renamed := [f"{t} as {ours}" for t, ours in special.items() if t != ours]:
        notes.append(f"special tokens have other names; here {', '.join(renamed)}")
    if words := [token for token in added if token not in special]:
        notes.append(
            f"{len(words)} added tokens ({', '.join(words[:3])}, ...) match anywhere "
            "in the text; here only whole words without punctuation"
        )
    length = config.get("model_max_length")
    if length is not None and not length >= 1:
        raise UserError(f"{config_path}: model_max_length is {length}.")
    # `transformers` writes 1e30 for "unknown".
    length = int(length) if length and length < 10**9 else None
    warnings = tuple(f"warning: the tokenizer differs: {note}" for note in notes)
    return Tokenizer(vocabulary, lower_case, strip_accents, length, warnings)


def _first(*values: bool | None) -> bool | None:
    return next((value for value in values if value is not None), None)


def _normalizer(
    whole: Mapping[str, Any], path: Path, notes: list[str]
) -> dict[str, bool | None]:
    """Returns the settings of an equal ``BertNormalizer``; notes unsupported steps."""
    if "normalizer" not in whole:
        return {}
    names = ("lowercase", "strip_accents", "handle_chinese_chars")
    settings = dict.fromkeys(names, False)
    waiting = [whole["normalizer"] or {"type": "Sequence"}]
    while waiting:
        step = waiting.pop()
        files.check_shape(step, _NORMALIZER, f"{path} is damaged: normalizer")
        kind = step.get("type") or "BertNormalizer"
        if kind == "Sequence":
            waiting += step.get("normalizers") or ()
        elif kind == "BertNormalizer":
            settings |= {name: step.get(name) for name in settings}
            if settings["handle_chinese_chars"] is None:
                settings["handle_chinese_chars"] = True
        elif kind == "Lowercase":
            settings["lowercase"] = True
        elif kind == "StripAccents":
            settings["strip_accents"] = True
        # Decomposition alone only prepares the removal of accents.
        elif kind != "NFD":
            notes.append(f"the normalizer {kind} is not supported and skipped")
    return settings


def _vocabulary(
    folder: Path,
    whole: Mapping[str, Any],
    added: Mapping[str, int],
    special: Mapping[str, str],
) -> Vocabulary | None:
    """Reads the tokens of vocab.txt or tokenizer.json; renames the ``special`` ones."""
    path, model = folder / "tokenizer.json", whole.get("model") or {}
    prefix = model.get("continuing_subword_prefix")
    if prefix not in (None, "##"):
        raise UserError(f"{path}: pieces inside words begin with {prefix!r}, not '##'.")
    if (folder / "vocab.txt").is_file():
        path = folder / "vocab.txt"
        roles = {ours.strip("[]").lower(): theirs for theirs, ours in special.items()}
        ids = dict(Vocabulary.load(path, **roles).ids)
        theirs = model.get("vocab")
        # `transformers` would read tokenizer.json.
        if isinstance(theirs, dict) and ids | added != theirs | added:
            raise UserError(
                f"{path} and tokenizer.json have different tokens: delete the wrong "
                "file."
            )
    elif not whole:
        return None
    elif model.get("type") != "WordPiece" or not isinstance(model.get("vocab"), dict):
        raise UserError(f"{path} is a {model.get('type')} tokenizer, not WordPiece.")
    else:
        ids = dict(model["vocab"])
    ids |= added
    tokens = sorted(ids, key=ids.get)
    if [ids[token] for token in tokens] != list(range(len(tokens))):
        most = len(tokens) - 1
        raise UserError(f"{path}: with its added tokens, ids are not 0 to {most}.")
    try:
        return Vocabulary(tuple(special.get(token, token) for token in tokens))
    except ValueError as error:
        raise UserError(f"{path}: {error}") from error


def write_tokenizer(folder: Path, model: Imported) -> None:
    """Writes vocab.txt, tokenizer.json and tokenizer_config.json."""
    import tokenizers
    from tokenizers import decoders, normalizers, pre_tokenizers, processors

    vocabulary, lower_case = model.vocabulary, model.lower_case
    vocabulary.save(folder / "vocab.txt")
    # `tokenizers` would strip accents of cased text; `WordPiece` never does.
    strip_accents = lower_case and model.strip_accents
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
    cls, sep = vocabulary.cls, vocabulary.sep
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{cls} $A {sep}",
        pair=f"{cls} $A {sep} $B:1 {sep}:1",
        special_tokens=[(cls, vocabulary.cls_id), (sep, vocabulary.sep_id)],
    )
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    tokenizer.add_special_tokens(list(vocabulary.special_tokens))
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "ElectraTokenizer",
        "do_lower_case": lower_case,
        "strip_accents": strip_accents,
        "tokenize_chinese_chars": True,
        "model_max_length": model.trained_length,
        **{f"{name}_token": token for name, token in vocabulary.names.items()},
    }
    files.write_json(folder / "tokenizer_config.json", config)
