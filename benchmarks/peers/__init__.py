"""The applications in PyTorch as a good engineer would batch them, to be measured beside dnc.

Level by level for trees and pyramids, cuDNN with packed sequences for LSTMs; all indices are made ahead.
Each class of `PEERS` starts from the parameters of a program, by name, and trains by SGD on fp32.
"""

from __future__ import annotations

from benchmarks.peers.base import Peer
from benchmarks.peers.pyramids import TdLstm, TdRnn
from benchmarks.peers.sequences import LanguageModel, LayerNormLstm, LstmClassifier, RnnClassifier
from benchmarks.peers.taggers import BiLstmTagger, CharTagger, CrfTagger
from benchmarks.peers.trees import Rvnn, TreeFc, TreeLstm

PEERS: dict[str, type[Peer]] = {
    peer.__name__: peer
    for peer in (
        BiLstmTagger,
        CharTagger,
        CrfTagger,
        LanguageModel,
        LayerNormLstm,
        LstmClassifier,
        RnnClassifier,
        Rvnn,
        TdLstm,
        TdRnn,
        TreeFc,
        TreeLstm,
    )
}

__all__ = ["PEERS", "Peer"]
