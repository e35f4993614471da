"""What the README shows runs."""

import re
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def test_the_readmes_python_runs(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    assert len(blocks) >= 4
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    printed = capsys.readouterr().out
    assert "successful" in printed
    assert "leave-one-out RMSE" in printed


def test_the_readme_shows_two_set_up_commands_and_warns_of_the_namesakes():
    text = README.read_text()
    assert len(re.findall(r"^python -m venv \.venv && ", text, flags=re.MULTILINE)) == 2
    assert "kernax-ml" in text
