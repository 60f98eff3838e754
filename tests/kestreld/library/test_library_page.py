"""docs/library.md: its examples do what they say."""

import doctest
import threading
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "library.md"


def test_the_examples_on_the_page_do_what_they_say(tmp_path: Path) -> None:
    text = PAGE.read_text().replace("/var/spool/kestrel", str(tmp_path))
    reacted = threading.Event()

    def say(words: str) -> None:
        said.append(words)
        reacted.set()

    said: list[str] = []
    # What the callback prints comes from another thread, and so at any time.
    text = text.replace("500, True, react)\ngot: hello\n", "500, True, react)\n>>> assert reacted.wait(60)\n")
    names = {"print": say, "reacted": reacted, "__name__": "__main__"}
    text = text.replace(">>> print(second.result())\nNone\n", ">>> second.result() is None\nTrue\n")
    examples = doctest.DocTestParser().get_doctest(text, names, "library.md", str(PAGE), 0)
    assert len(examples.examples) > 15
    assert doctest.DocTestRunner().run(examples).failed == 0
    assert said == ["got: hello"]
