#!/usr/bin/env python3
from clone import run

if __name__ == "__main__":
    run("train")
