"""Runs keras-transformer prepare on corpora in all forms."""

import pytest

TEXT = "--source=a.en --target=a.de"
VALID = "--valid_source=a.en --valid_target=a.de"
TAKEN = (
    f"prepare {TEXT} --vocab_size=60 --valid_pairs=2 --seed=3 --workers=1",
    f"prepare {TEXT} {VALID} --vocab_from=data --seed=3 --symbols=<2de>",
    "prepare --tsv=a.tsv --tsv_columns=2,1 --vocab_size=60",
    "prepare --source=a,b.en --target=a.de --vocab_size=60",
    "prepare --tmx=a.tmx --source_language=en --target_language=de --vocab_size=60",
    f"prepare {TEXT} --valid_tmx=a.tmx --source_language=en --target_language=de --vocab_size=60",
    "prepare --tfds=translate_folder:sets@train --valid_tfds=translate_folder:sets@test "
    "--source_language=en --vocab_size=60",
)


@pytest.mark.parametrize("number", range(len(TAKEN)))
def test_flags_that_do_something_are_taken(driver, folder, number):
    command, *flags = TAKEN[number].split()
    ended = driver.run(folder, command, [*flags, f"--output_dir=new{number}"], "")
    assert ended.code == 0, ended.err
