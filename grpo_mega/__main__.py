"""`python -m grpo_mega` is the `grpo-mega` command."""

from grpo_mega.cli import main

if __name__ == "__main__":
    main()
