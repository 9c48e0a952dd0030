"""`python -m keras_transformer COMMAND` is the same as `keras-transformer COMMAND`."""

from keras_transformer.cli.main import main

if __name__ == "__main__":
    main()
