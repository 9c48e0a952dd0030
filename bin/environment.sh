# Sourced by bin/test and bin/quickstart: the virtual environment .venv in the project's root.
#
#   prepare_environment [EXTRAS]   makes .venv if need be and installs this package with the
#                                  given extras, as in "phrasebook,plots", in the versions of
#                                  constraints.txt; dev has all of them
#
# Installs only when something that decides what is installed has changed since the last time.
# PYTHON names the interpreter to start from (default: the first fit one of python3, python3.1x).

project_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=$project_root/.venv

_fail() {
  echo "error: $*" >&2
  exit 1
}

_is_fit() { "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null; }

_find_python() {
  local candidate
  for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11}; do
    if _is_fit "$candidate"; then
      echo "$candidate"
      return
    fi
  done
  candidate=${PYTHON:-python3}
  _fail "$candidate is $("$candidate" --version 2>/dev/null || echo "no Python that runs");" \
    "TensorFlow 2.21 and Keras 3.15 need 3.11, 3.12 or 3.13: install one and name it," \
    "as in PYTHON=python3.12 $0"
}

_make_venv() {
  local python
  python=$(_find_python) || exit 1
  echo "Making .venv with $("$python" --version)"
  "$python" -m venv --clear "$venv" >"$project_root/.venv.log" 2>&1 || {
    cat "$project_root/.venv.log" >&2
    _fail "$python -m venv does not work (above); on Debian and Ubuntu: apt install python3-venv"
  }
  mv "$project_root/.venv.log" "$venv/make.log"
}

prepare_environment() {
  local extras=${1:-} stamp=$venv/installed wanted started=$SECONDS
  # The stamp: a hash of everything that decides, then each set of extras installed since.
  wanted=$({ echo "$project_root" && cd "$project_root" &&
    cat setup.py setup.cfg pyproject.toml constraints.txt; } | cksum | tr ' ' '-')
  if [[ -f $stamp ]] && [[ $(head -n 1 "$stamp") == "$wanted" ]] &&
    { [[ -z $extras ]] || grep -qxE "$extras|dev" "$stamp"; }; then
    return
  fi
  "$venv/bin/python" -m pip --version >/dev/null 2>&1 && _is_fit "$venv/bin/python" || _make_venv
  echo "Installing TensorFlow, Keras and the rest into .venv: the first time about 1 GB of downloads," \
    "3 GB on disk, and some minutes"
  # Not compiled: two thirds of it are never imported, and Python compiles what is.
  "$venv/bin/python" -m pip install --disable-pip-version-check --progress-bar off --no-compile \
    -e "$project_root${extras:+[$extras]}" -c "$project_root/constraints.txt" \
    >"$venv/install.log" 2>&1 || {
    tail -n 20 "$venv/install.log" >&2
    _fail "pip could not install the packages (above; all of it in .venv/install.log)"
  }
  if [[ -f $stamp ]] && [[ $(head -n 1 "$stamp") == "$wanted" ]]; then
    echo "$extras" >>"$stamp"
  else
    printf '%s\n%s\n' "$wanted" "$extras" >"$stamp"
  fi
  echo "Installed in $((SECONDS - started)) s"
}
