"""What turns answers of the admin service into rows, sentences and documents; ``ctl``, ``page`` and ``relay`` use it. Pure."""
