"""Objectives, generators, weight sharing and training algorithms, with help texts."""

OBJECTIVES = {
    "electra": "replaced token detection",
    "electra_15": "replaced token detection at masked positions only",
    "replace_mlm": "the original of masked tokens, from the corrupted text",
    "all_tokens_mlm": "the original of every token, with a copy gate",
    "electric": "energies against the noise of a two-tower generator",
    "mlm": "BERT's masked LM: one network, no discriminator",
}
GENERATORS = {
    "masked_lm": "reads the masked text",
    "two_tower": (
        "reads the unmasked text from the left and from the right (ELECTRA-TT; always "
        "so in electric)"
    ),
    "unigram": "token frequencies of the training text; nothing is trained",
    "uniform": "equal probability for every token; nothing is trained",
}
SHARINGS = {
    "tied": "all embedding tables",
    "token": "the word table",
    "untied": "nothing (the generator's tables have its own width)",
    "nes": "nothing (the generator's tables have the full width)",
    "gdes": (
        "tables without the discriminator's gradient, plus deltas of the discriminator"
    ),
    "all": "everything: one encoder is both",
}
TRAININGS = {
    "joint": "both by their own loss",
    "two_stage": "the generator first, then the discriminator",
    "reinforce": "the generator is rewarded for fooling the discriminator",
    "gumbel": (
        "the generator follows the discriminator's gradient through a relaxation"
    ),
}
# Sharing under which training the discriminator does not change the generator.
SEPARATE = ("untied", "nes", "gdes")
# Algorithms that train the generator against the discriminator.
ADVERSARIAL = ("reinforce", "gumbel")
