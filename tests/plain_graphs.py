"""Programs as TensorFlow's own graphs instead of XLA's: slower, but ready sooner.

Run as a script, it is `bayesnde` with such programs.
"""

from collections.abc import Callable


def install(replace: Callable[[object, str, object], object] = setattr) -> None:
    """Has all programs that are made from now on run as graphs; XLA's random numbers are not at hand there."""
    import tensorflow as tf

    from bayesnde_cli.model import backend

    function, random = tf.function, tf.random
    replace(tf, "function", lambda body=None, jit_compile=True, **options: function(body, **options))
    replace(backend, "_random", lambda name, shape, seed, **options: getattr(random, name)(shape, seed, **options))


if __name__ == "__main__":
    from bayesnde_cli.cli.main import main

    install()
    main()
