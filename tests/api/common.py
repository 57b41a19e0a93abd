import electra_tf as et

CLASSES = ("TextClassifier", "TokenClassifier", "QuestionAnswering")
WORDS = ["the movie is good", "a bad book .", "it was awful", "the song is great !"]
LABELS = ["pos", "neg", "neg", "pos"]
TAGS = ["O B-X O O", "O O B-X O", "O O O", "O B-X I-X O O"]
QUESTIONS = {"question": ["is it good ?"] * 4, "context": WORDS}
ANSWERS = {"answer": ["movie", "book", "awful", "song"], "start": [4, 6, 7, 4]}
# Class -> columns of texts, columns of labels.
DATA = {
    "TextClassifier": ({"text": WORDS}, {"label": LABELS}),
    "TokenClassifier": ({"text": WORDS}, {"label": TAGS}),
    "QuestionAnswering": (QUESTIONS, ANSWERS),
}


def make(name, preset, **options):
    """Returns a model without dropout that runs eagerly, since tracing takes longer."""
    arguments = {
        "TextClassifier": {"labels": ["neg", "pos"], "head_dropout": 0.0},
        "TokenClassifier": {"tags": ["O", "B-X", "I-X"], "head_dropout": 0.0},
        "QuestionAnswering": {"max_query_length": 8, "doc_stride": 8},
    }
    arguments = {"dropout": 0.0, "attention_dropout": 0.0, **arguments[name], **options}
    model = getattr(et, name).from_preset(preset, **arguments)
    model.run_eagerly = True
    return model
