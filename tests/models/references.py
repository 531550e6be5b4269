"""The reference of every example, by name, and what a comparison has to know about some of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.models import graphs, pairs, sequences, taggers, trees
from tests.models.cells import Dropout, Parameters, Result, Sample

Run = Callable[[Parameters, Sample, Dropout], Result]

REFERENCES: dict[str, Run] = {
    "additive_attention": pairs.additive_attention,
    "attention": pairs.attention,
    "bilstm_tagger": taggers.bilstm_tagger,
    "char_rnn": sequences.char_rnn,
    "char_tagger": taggers.char_tagger,
    "childsum": trees.childsum,
    "crf_tagger": taggers.crf_tagger,
    "dag": graphs.dag,
    "encoder_decoder": pairs.encoder_decoder,
    "gru_classifier": sequences.gru_classifier,
    "language_model": sequences.language_model,
    "language_model_variable": sequences.language_model,
    "layer_norm_lstm": sequences.layer_norm_lstm,
    "lstm2": sequences.lstm2,
    "lstm_classifier": sequences.lstm_classifier,
    "mvrnn": trees.mvrnn,
    "nary_treelstm": trees.nary_treelstm,
    "ner_tagger": taggers.ner_tagger,
    "rnn_stack": graphs.rnn_stack,
    "rvnn": trees.rvnn,
    "similarity": pairs.similarity,
    "sparse_lstm": sequences.sparse_lstm,
    "td_lstm": graphs.td_lstm,
    "td_rnn": graphs.td_rnn,
    "tied_language_model": sequences.tied_language_model,
    "token_vectors": trees.token_vectors,
    "top_down": trees.top_down,
    "torch_gru": sequences.torch_gru,
    "tree_fc": trees.tree_fc,
    "tree_fc_random": trees.tree_fc,
    "tree_to_sequence": pairs.tree_to_sequence,
    "treelstm": trees.treelstm,
}

DROPPED: dict[str, Callable[[Sample], Sequence[Sample]]] = {
    "char_rnn": lambda sample: sample["letters"],
    "ner_tagger": lambda sample: sample["words"],
}
"""The vertices of a sample, in order, at which a model drops something."""

PULLED: dict[str, tuple[str, Callable[[Sample], Sequence[Sample]]]] = {
    "token_vectors": ("Tree.x", lambda sample: trees.leaves(sample)),
}
"""Programs inside another net: the field that is pulled, and the vertices of a sample that have it."""
