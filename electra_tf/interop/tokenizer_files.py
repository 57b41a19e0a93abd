"""Reads and writes the tokenizer files of a Hugging Face folder."""

from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import normalizers, pre_tokenizers

from electra_tf import files
from electra_tf.data.vocabulary import MAX_WORD_LENGTH, SPECIAL_TOKENS, Vocabulary
from electra_tf.errors import UserError, explained
from electra_tf.interop.networks import Imported

OUTPUTS = ("vocab.txt", "tokenizer.json", "tokenizer_config.json")

# A special token is its name, or an object with its name.
_NAMES = dict.fromkeys(
    ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"),
    (None, str, {"content": str}),
)
# Optional entries of tokenizer_config.json.
_CONFIG = {
    **_NAMES,
    "do_lower_case": bool | None,
    "strip_accents": bool | None,
    "tokenize_chinese_chars": bool | None,
    "word_tokenizer_type": str | None,
    "model_max_length": float | None,
}
# Entries with one supported value.
_FIXED = {"tokenize_chinese_chars": True, "word_tokenizer_type": "basic"}
# Capitals, accents, Chinese, punctuation and a ligature show how a tokenizer differs.
_PROBE = "The \u00c9t\u00e9 \u4e2d\u6587 isn't \ufb01ne"


def read_tokenizer(folder: Path) -> dict[str, Any]:
    """Returns fields of ``Imported``; ``notes`` are differences from ``WordPiece``.

    Renames special tokens, such as ``<pad>``.
    """
    config_path = folder / "tokenizer_config.json"
    config = files.read_json(config_path, {}, shape=_CONFIG)
    # As in `transformers`, the config takes precedence over tokenizer.json, and accents
    # of lower-cased text are stripped by default.
    lower_case, strip_accents = config.get("do_lower_case"), config.get("strip_accents")
    whole = _load(folder / "tokenizer.json")
    if whole is not None:
        (letter,) = _words(whole.normalizer, None, "\u00c9")
        lower_case = letter.islower() if lower_case is None else lower_case
        strip_accents = letter in "Ee" if strip_accents is None else strip_accents
    elif strip_accents is None:
        strip_accents = lower_case
    notes = [
        f"{name} is {config[name]}, not {value}"
        for name, value in _FIXED.items()
        if config.get(name, value) != value
    ]
    if strip_accents and lower_case is False:
        notes.append("accents are stripped without lower-casing; here they are kept")
        strip_accents = False
    elif whole is not None:
        normalizer = _normalizer(lower_case, strip_accents)
        ours = _words(normalizer, pre_tokenizers.BertPreTokenizer())
        theirs = _words(whole.normalizer, whole.pre_tokenizer)
        if theirs != ours:
            notes.append(f"the words of {_PROBE!r} are {theirs}, and here {ours}")
    listed = files.read_json(folder / "special_tokens_map.json", {}, shape=_NAMES)
    special = {}
    for key, ours in zip(_NAMES, SPECIAL_TOKENS, strict=True):
        theirs = config.get(key, listed.get(key)) or ours
        special[theirs if isinstance(theirs, str) else theirs["content"]] = ours
    if renamed := [f"{t} as {ours}" for t, ours in special.items() if t != ours]:
        notes.append(f"special tokens have other names; here {', '.join(renamed)}")
    decoder = {} if whole is None else whole.get_added_tokens_decoder()
    added = {token.content: number for number, token in decoder.items()}
    added |= files.read_json(folder / "added_tokens.json", {}, shape=dict[str, int])
    vocabulary = _vocabulary(folder, whole, added, special, notes)
    if words := [token for token in added if token not in special]:
        notes.append(
            f"{len(words)} added tokens ({', '.join(words[:3])}, ...) match anywhere "
            "in the text; here only whole words without punctuation"
        )
    length = config.get("model_max_length")
    if length is not None and not length >= 1:
        raise UserError(f"{config_path}: model_max_length is {length}.")
    # `transformers` writes 1e30 for "unknown".
    is_known = length is not None and length < 10**9
    return {
        "vocabulary": vocabulary,
        "lower_case": lower_case,
        "strip_accents": strip_accents,
        "trained_length": int(length) if is_known else None,
        "notes": tuple(f"warning: the tokenizer differs: {note}" for note in notes),
    }


def _load(path: Path) -> tokenizers.Tokenizer | None:
    """Reads tokenizer.json, None if missing; ValueError if it is not WordPiece."""
    if not path.is_file():
        return None
    with explained(f"{path} is damaged", Exception):
        whole = tokenizers.Tokenizer.from_file(str(path))
    kind = type(whole.model).__name__
    prefix = getattr(whole.model, "continuing_subword_prefix", None)
    if kind != "WordPiece" or prefix != "##":
        raise UserError(
            f"{path} is a {kind} tokenizer with the prefix {prefix!r}, not WordPiece "
            "with '##'."
        )
    return whole


def _normalizer(lower_case: bool, strip_accents: bool) -> normalizers.Normalizer:
    # `tokenizers` would strip accents of cased text; `WordPiece` never does.
    strips = lower_case and strip_accents
    return normalizers.BertNormalizer(lowercase=lower_case, strip_accents=strips)


def _words(normalizer: Any, splitter: Any, text: str = _PROBE) -> list[str]:
    text = text if normalizer is None else normalizer.normalize_str(text)
    if splitter is None:
        return [text]
    return [word for word, _ in splitter.pre_tokenize_str(text)]


def _vocabulary(
    folder: Path,
    whole: tokenizers.Tokenizer | None,
    added: dict[str, int],
    special: dict[str, str],
    notes: list[str],
) -> Vocabulary | None:
    """Reads tokenizer.json, or else vocab.txt; renames the ``special`` tokens."""
    path, ids = folder / "vocab.txt", None
    if path.is_file():
        roles = {ours.strip("[]").lower(): theirs for theirs, ours in special.items()}
        ids = Vocabulary.load(path, **roles).ids | added
    if whole is not None:
        listed, path = ids, folder / "tokenizer.json"
        ids = whole.get_vocab() | added
        if listed not in (None, ids):
            notes.append(
                "vocab.txt and tokenizer.json have different tokens; here those of "
                "tokenizer.json, as in `transformers`: delete the wrong file"
            )
    if ids is None:
        return None
    tokens = sorted(ids, key=ids.get)
    if [ids[token] for token in tokens] != list(range(len(tokens))):
        most = len(tokens) - 1
        raise UserError(f"{path}: with its added tokens, ids are not 0 to {most}.")
    with explained(str(path)):
        return Vocabulary(tuple(special.get(token, token) for token in tokens))


def write_tokenizer(folder: Path, model: Imported) -> None:
    """Writes vocab.txt, tokenizer.json and tokenizer_config.json."""
    vocabulary = model.vocabulary
    vocabulary.save(folder / "vocab.txt")
    names = {f"{name}_token": token for name, token in vocabulary.names.items()}
    tokenizer = tokenizers.BertWordPieceTokenizer(dict(vocabulary.ids), **names)
    tokenizer.normalizer = _normalizer(model.lower_case, model.strip_accents)
    tokenizer.model.max_input_chars_per_word = MAX_WORD_LENGTH
    tokenizer.save(str(folder / "tokenizer.json"))
    # A fine-tuned model may read fewer tokens than were trained.
    task = model.task.options if model.task else {}
    config = {
        "tokenizer_class": "ElectraTokenizer",
        "do_lower_case": model.lower_case,
        "strip_accents": model.lower_case and model.strip_accents,
        "tokenize_chinese_chars": True,
        "model_max_length": task.get("max_seq_length") or model.trained_length,
        **names,
    }
    files.write_json(folder / "tokenizer_config.json", config)
