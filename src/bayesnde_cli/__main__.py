"""`python -m bayesnde_cli` is `bayesnde`."""

from bayesnde_cli.cli.main import main

if __name__ == "__main__":
    main()
