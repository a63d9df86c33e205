"""What is wrong with model files.

    FormatError
    ├── ConfigError    config.json says something that Crowfly cannot run
    ├── WeightsError   a weight file is missing, broken, or not what config.json promises
    └── GgufError      a GGUF file that cannot be converted

Each message names the file, and the key or tensor.
"""


class FormatError(ValueError):
    """Base of all."""


class ConfigError(FormatError):
    pass


class WeightsError(FormatError):
    pass


class GgufError(FormatError):
    pass
