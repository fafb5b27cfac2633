.PHONY: checks test

checks:
	ruff format --check .
	ruff check .
	mypy

test:
	python -m pytest -q -n 2
