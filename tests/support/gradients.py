"""Finite differences of the loss, along random directions."""

import numpy as np

from dnc.ir.interpreter import interpret


def check_gradients(program, forest, parameters, reference=None, directions=2, epsilon=1e-5, tolerance=1e-7):
    """The gradients of `program` against central differences of the loss of `reference`."""
    random = np.random.default_rng(0)
    found = interpret(program, forest, parameters).gradients
    for parameter in program.parameters:
        name, array = parameter.name, parameters[parameter.name]
        assert found[name].shape == array.shape
        if not parameter.trained:
            assert parameter.running or (found[name] == 0).all()
            continue
        for _ in range(directions):
            direction = random.normal(size=array.shape)
            ahead, behind = (
                interpret(
                    reference or program, forest, {**parameters, name: array + side * epsilon * direction}
                ).loss
                for side in (1, -1)
            )
            numeric = (ahead - behind) / (2 * epsilon)
            exact = float((found[name] * direction).sum())
            assert abs(exact - numeric) < tolerance * max(1.0, abs(numeric)), (name, exact, numeric)
