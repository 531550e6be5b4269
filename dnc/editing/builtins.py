"""What the language itself brings: signatures and meanings, for hover and completion.

In: the name of a builtin, a reduction, a measure, an initializer, a link or a kind. Out: a `Builtin`.
Guaranteed: a test holds the names against the op table, the measures, the initializers and the links.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from dnc.frontend.expectations import FORMS


@attrs.frozen
class Builtin:
    """How something is written, and what it means."""

    signature: str
    meaning: str


AXIS = "along axis 1 of every row, 0 of every column"

FUNCTIONS: Mapping[str, Builtin] = {
    "sigmoid": Builtin("sigmoid(x: [...]) -> [...]", "1 / (1 + exp(-x)), element by element"),
    "tanh": Builtin("tanh(x: [...]) -> [...]", "the hyperbolic tangent, element by element"),
    "relu": Builtin("relu(x: [...]) -> [...]", "max(x, 0), element by element"),
    "exp": Builtin("exp(x: [...]) -> [...]", "e to the x, element by element"),
    "log": Builtin("log(x: [...]) -> [...]", "the natural logarithm, element by element"),
    "sqrt": Builtin("sqrt(x: [...]) -> [...]", "the square root, element by element"),
    "abs": Builtin("abs(x: [...]) -> [...]", "the absolute value, element by element"),
    "maximum": Builtin("maximum(a: [...], b: [...]) -> [...]", "the larger of two, element by element"),
    "minimum": Builtin("minimum(a: [...], b: [...]) -> [...]", "the smaller of two, element by element"),
    "softmax": Builtin(
        "softmax(x: [n]) -> [n], softmax(M: [m, n], axis) -> [m, n]",
        f"positive numbers with the sum 1; {AXIS}",
    ),
    "log_softmax": Builtin(
        "log_softmax(x: [n]) -> [n], log_softmax(M: [m, n], axis) -> [m, n]",
        f"the logarithm of softmax; {AXIS}",
    ),
    "logsumexp": Builtin(
        "logsumexp(x: [n]) -> [], logsumexp(M: [m, n], 1) -> [m]",
        f"the logarithm of the sum of exp(x); {AXIS}",
    ),
    "sum": Builtin(
        "sum(x: [...]) -> [], sum(M: [m, n], 1) -> [m], sum(f(k) for k in list)",
        f"of all elements; {AXIS}; or over the vertices of a list",
    ),
    "mean": Builtin(
        "mean(x: [...]) -> [], mean(M: [m, n], 1) -> [m], mean(f(k) for k in list)",
        f"of all elements; {AXIS}; or over the vertices of a list",
    ),
    "max": Builtin(
        "max(x: [n]) -> [], max(M: [m, n], 1) -> [m], max(f(k) for k in list)",
        f"of all elements; {AXIS}; or element by element over the vertices of a list, of none zeros",
    ),
    "transpose": Builtin("transpose(M: [m, n]) -> [n, m]", "rows and columns change places"),
    "outer": Builtin("outer(a: [m], b: [n]) -> [m, n]", "every element of a times every one of b"),
    "concat": Builtin(
        "concat(a: [n], b: [m], ...) -> [n + m + ...]", "one vector of several; of matrices, their rows"
    ),
    "split": Builtin("a, b, c = split(x: [3 * n], 3)", "equal parts of a vector; `_` drops a part"),
    "cross_entropy": Builtin(
        "cross_entropy(logits: [n], label: class<n>) -> []", "of a class; 0 where the label is missing"
    ),
    "kl_divergence": Builtin(
        "kl_divergence(target: [n], logits: [n]) -> []", "from softmax of the logits to a distribution"
    ),
    "squared_error": Builtin("squared_error(a: [...], b: [...]) -> []", "the sum of squared differences"),
    "dropout": Builtin(
        "dropout(x: [...], rate) -> [...]",
        "in training zero with the probability `rate`, else x / (1 - rate)",
    ),
    "follow": Builtin(
        "follow(m: [n], x: [n], rate) -> [n]",
        "the running param m; a training step moves it by `rate` of the way to the mean of x",
    ),
    "argmax": Builtin("argmax(x: [n]) -> class<n>", "the class with the largest element"),
    "sample": Builtin(
        "sample(x: [n]) -> class<n>",
        "a class drawn from softmax(x), in training and with a seed; else the one with the largest element",
    ),
}

REDUCTIONS: Mapping[str, Builtin] = {
    "sum": FUNCTIONS["sum"],
    "mean": FUNCTIONS["mean"],
    "max": FUNCTIONS["max"],
    "attend": Builtin(
        "attend(score: [], value(k): [m] for k in list) -> [m]",
        "the values, weighted by the softmax of the scores; of attend(query, key(k), value(k) for k in list) "
        "these are the products of query and keys",
    ),
}

MEASURES: Mapping[str, Builtin] = {
    "sum": Builtin("loss sum(t in ...) x", "the sum over the vertices of a sample; the mean over samples"),
    "mean": Builtin("mean(t in ...) x", "the mean over all vertices; of `a == b` the accuracy"),
    "perplexity": Builtin("perplexity(t in ...) x", "exp of the mean"),
    "pearson": Builtin("pearson(t in ...) x, y", "the correlation of two scalars"),
    "spearman": Builtin("spearman(t in ...) x, y", "the correlation of the ranks of two scalars"),
    "rmse": Builtin("rmse(t in ...) x, y", "the root of the mean square of the differences of two scalars"),
    "macro_f1": Builtin("macro_f1(t in ...) argmax(scores(t)), t.label", "the mean of F1 over the classes"),
    "f1": Builtin("f1(w in all(Word)) argmax(scores(w)), w.tag", "F1 over the entities in lists"),
}

INITIALIZERS: Mapping[str, Builtin] = {
    "zeros": Builtin("zeros", "the default of vectors"),
    "constant": Builtin("constant(a)", "every element a"),
    "uniform": Builtin("uniform(a)", "between -a and a"),
    "normal": Builtin("normal(s)", "mean 0, deviation s; normal(0.1) is the default of tables"),
    "xavier": Builtin("xavier", "the default of matrices"),
    "orthogonal": Builtin("orthogonal", "an orthogonal matrix"),
    "identity": Builtin("identity", "ones on the diagonal, zeros elsewhere"),
    "pieces": Builtin("pieces(a, b, ...)", "a vector of equal parts, each constant"),
}

LINKS: Mapping[str, Builtin] = {
    "prev": Builtin("t.prev", "the vertex before this one in the list that holds it"),
    "next": Builtin("t.next", "the vertex behind this one in the list that holds it"),
    "parent": Builtin("t.parent", "the vertex that refers to this one"),
    "first": Builtin("t.children.first", "the first vertex of a list"),
    "last": Builtin("t.children.last", "the last vertex of a list"),
}

KINDS: Mapping[str, Builtin] = {
    "token": Builtin("token<dimension>", "an index into tables"),
    "class": Builtin("class<dimension>", "a label; a missing one costs nothing in cross_entropy"),
    "index": Builtin("index<dimension>", "a number that selects from stacks of parameters"),
    "vector": Builtin("vector<dimension>", "numbers from the data"),
    "pulled": Builtin("pulled<dimension>", "numbers that are handed in with every batch"),
    "float": Builtin("float", "a number, seen as a scalar"),
}

DOMAINS: Mapping[str, Builtin] = {
    "root": Builtin("t in root", "the sample's root alone"),
    "all": Builtin("t in all(Struct), t in all(Struct.Arm)", "all vertices of a struct, or of one arm"),
}

PARAMETER_KINDS: Mapping[str, Builtin] = {
    "table": Builtin("table[rows, width]", "a matrix that is read by tokens, row by row"),
    "stack": Builtin("stack[count, rows, columns]", "a parameter for every value of an index"),
}

DECLARATIONS: Mapping[str, Builtin] = {
    **{word: Builtin(form, "") for word, form in FORMS.items()},
    "push": Builtin(FORMS["push"], "an output that takes a gradient back"),
}
