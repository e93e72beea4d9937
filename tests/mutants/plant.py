#!/usr/bin/env python3
"""Finds where a planted bug belongs, and puts it there. `run` calls it.

    plant.py check TREE MUTANT...   says what is wrong with each; ends with 1 if anything is
    plant.py where TREE MUTANT      the files that it would change
    plant.py plant TREE MUTANT      changes them, and says which

docs/mutants.md has the format. A snippet names no file and no line number, so that it survives a move
within its crate. It must occur exactly once there, or it could land elsewhere than was meant.
"""

import os
import sys
from pathlib import Path


# What cargo and npm leave behind is no source.
NOT_SEARCHED = ("target", "node_modules", ".git")


class Wrong(Exception):
    """What is wrong with a mutant, one complaint a line."""


class Tree:
    """The text files of a tree, read once."""

    def __init__(self, root):
        self.root = Path(root)
        self.folders = {}

    def folder(self, crate):
        """A crate's folder, or else a folder of the tree such as `docs`."""
        for folder in (Path("crates", crate), Path(crate)):
            if (self.root / folder).is_dir():
                return folder
        raise Wrong(f"there is no crate and no folder {crate}")

    def files(self, folder):
        """Path to lines, as they are and stripped, for every text file below the folder."""
        if folder not in self.folders:
            files = {}
            for path, folders, names in os.walk(self.root / folder):
                folders[:] = [name for name in folders if name not in NOT_SEARCHED]
                for name in names:
                    file = Path(path, name)
                    try:
                        text = file.read_bytes().decode()
                    except (UnicodeDecodeError, OSError):
                        continue
                    lines = text.split("\n")
                    stripped = [line.strip() for line in lines]
                    files[file.relative_to(self.root)] = (lines, stripped)
            self.folders[folder] = dict(sorted(files.items()))
        return self.folders[folder]

    def find(self, folder, snippet):
        """Every place of a snippet: path, index of its first line. Indentation does not count."""
        wanted = [line.strip() for line in snippet]
        places = []
        for file, (_, lines) in self.files(folder).items():
            at = -1
            while True:
                try:
                    at = lines.index(wanted[0], at + 1)
                except ValueError:
                    break
                if lines[at : at + len(wanted)] == wanted:
                    places.append((file, at))
        return places


class Edit:
    def __init__(self, crate, line):
        self.crate, self.line, self.find, self.put = crate, line, [], []


def edits_of(mutant):
    """The edits of a mutant's file. Its first two lines are `test:` and `plants:`."""
    lines = Path(mutant).read_text(encoding="utf-8").splitlines()
    first, second = (lines + ["", ""])[:2]
    if not (first.startswith("test: ") and "cargo test " in first):
        raise Wrong("its first line names no test: `test: ... cargo test ...`")
    if not (second.startswith("plants: ") and second.removeprefix("plants: ").strip()):
        raise Wrong("its second line does not say what it plants: `plants: ...`")
    edits, crate, part = [], None, None
    for number, line in enumerate(lines[2:], 3):
        if part is None:
            if line.startswith("crate: "):
                crate = line.removeprefix("crate: ").strip()
            elif line == "--- find" and crate:
                edits.append(Edit(crate, number))
                part = edits[-1].find
            elif line.strip():
                raise Wrong(f"line {number}: neither `crate: NAME` nor, below one, `--- find`")
        elif line == "--- put" and part is edits[-1].find:
            part = edits[-1].put
        elif line == "--- end" and part is edits[-1].put:
            part = None
        elif line in ("--- find", "--- put", "--- end"):
            raise Wrong(f"line {number}: `{line}` out of turn; it is find, put, end")
        else:
            part.append(line)
    if part is not None:
        raise Wrong("it ends without `--- end`")
    if not edits:
        raise Wrong("it changes nothing")
    for edit in edits:
        if not edit.find or not edit.find[0].strip():
            raise Wrong(f"line {edit.line}: a snippet begins with a line that is not empty")
        if edit.find == edit.put:
            raise Wrong(f"line {edit.line}: a snippet is replaced by itself")
    return edits


def indentation(line):
    return len(line) - len(line.lstrip(" "))


def put_at(edit, line):
    """The replacement, indented from the first line that it replaces."""
    further = indentation(line) - indentation(edit.find[0])
    indented = [" " * max(0, indentation(put) + further) + put.strip() for put in edit.put]
    return [put.rstrip() for put in indented]


def named(places):
    return ", ".join(f"{file}:{at + 1}" for file, at in places)


def place(tree, edit):
    """The one place of an edit, or what is wrong with it."""
    folder = tree.folder(edit.crate)
    places = tree.find(folder, edit.find)
    if len(places) == 1:
        return places[0]
    snippet = "".join(f"\n        {line}" for line in edit.find)
    if places:
        raise Wrong(f"found {len(places)} times, at {named(places)}:{snippet}")
    message = f"not found in {folder}:{snippet}"
    elsewhere = tree.find(Path("crates"), edit.find)
    gone = [line for line in edit.find if not tree.find(folder, [line])]
    if elsewhere:
        message += f"\n    another crate has it: {named(elsewhere)}"
    elif len(edit.find) > 1:
        message += "".join(f"\n    no such line: {line.strip()}" for line in gone)
        message += "" if gone else "\n    its lines are there, but not one after the other"
    raise Wrong(message)


def planted(tree, mutant):
    """Path to lines of each file that the mutant changes, in its order."""
    wrong, places = [], []
    for edit in edits_of(mutant):
        try:
            places.append((*place(tree, edit), edit))
        except Wrong as problem:
            wrong.append(str(problem))
    if wrong:
        raise Wrong("\n".join(wrong))
    changed = {}
    for file, _, edit in places:
        changed.setdefault(file, list(tree.files(tree.folder(edit.crate))[file][0]))
    # From the end, so that what is still to come stays where it was found.
    begun = {}
    for file, at, edit in sorted(places, key=lambda each: each[1], reverse=True):
        end = at + len(edit.find)
        if end > begun.get(file, end):
            raise Wrong(f"two of its snippets overlap at {file}:{begun[file] + 1}")
        begun[file] = at
        changed[file][at:end] = put_at(edit, changed[file][at])
    return changed


def main():
    if len(sys.argv) < 4 or sys.argv[1] not in ("check", "where", "plant"):
        sys.exit("usage: plant.py check|where|plant TREE MUTANT...")
    task, tree, wrong = sys.argv[1], Tree(sys.argv[2]), False
    for mutant in sys.argv[3:]:
        try:
            changed = planted(tree, mutant)
        except Wrong as problem:
            for line in str(problem).split("\n"):
                name = "" if line.startswith(" ") else f"{Path(mutant).stem}: "
                print(f"{name}{line}", file=sys.stderr)
            wrong = True
            continue
        if task == "plant":
            for file, lines in changed.items():
                (tree.root / file).write_bytes("\n".join(lines).encode())
        if task != "check":
            print(" ".join(str(file) for file in changed))
    sys.exit(1 if wrong else 0)


main()
