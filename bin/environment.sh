# Creates the virtual environment .venv. Sourced by bin/test, bin/quickstart and bin/site.
#
#   prepare_environment [EXTRAS]   creates .venv if it is missing, and installs this package with
#                                  extras, such as "phrasebook,plots", and the versions of
#                                  constraints.txt; dev includes all extras
#
# Installs again only if setup.py, setup.cfg, pyproject.toml or constraints.txt has changed.
# PYTHON is the interpreter (default: the first suitable one of python3, python3.13, 3.12, 3.11).

# Images of containers often set it. Every process would then compile all modules of TensorFlow again.
unset PYTHONDONTWRITEBYTECODE

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
  _fail "$candidate is $("$candidate" --version 2>/dev/null || echo "not a working Python")," \
    "but TensorFlow 2.21 and Keras 3.15 need Python 3.11, 3.12 or 3.13." \
    "Install one and select it: PYTHON=python3.12 $0"
}

_make_venv() {
  local python
  python=$(_find_python) || exit 1
  echo "Creating .venv with $("$python" --version)"
  "$python" -m venv --clear "$venv" >"$project_root/.venv.log" 2>&1 || {
    cat "$project_root/.venv.log" >&2
    _fail "$python -m venv failed (see above). On Debian and Ubuntu, run: apt install python3-venv"
  }
  mv "$project_root/.venv.log" "$venv/make.log"
}

prepare_environment() {
  local extras=${1:-} stamp=$venv/installed wanted started=$SECONDS
  # The stamp has a hash of these files, then each set of extras that was installed since.
  wanted=$({ echo "$project_root" && cd "$project_root" &&
    cat setup.py setup.cfg pyproject.toml constraints.txt; } | cksum | tr ' ' '-')
  if [[ -f $stamp ]] && [[ $(head -n 1 "$stamp") == "$wanted" ]] &&
    { [[ -z $extras ]] || grep -qxE "$extras|dev" "$stamp"; }; then
    return
  fi
  "$venv/bin/python" -m pip --version >/dev/null 2>&1 && _is_fit "$venv/bin/python" || _make_venv
  echo "Installing TensorFlow, Keras and other packages into .venv. The first time, this takes some" \
    "minutes, 1 GB of downloads and 3 GB on disk."
  # --no-compile: two thirds of the files are never imported. Python compiles the others on import.
  "$venv/bin/python" -m pip install --disable-pip-version-check --progress-bar off --no-compile \
    -e "$project_root${extras:+[$extras]}" -c "$project_root/constraints.txt" \
    >"$venv/install.log" 2>&1 || {
    tail -n 20 "$venv/install.log" >&2
    _fail "pip could not install the packages (see above, and .venv/install.log)."
  }
  if [[ -f $stamp ]] && [[ $(head -n 1 "$stamp") == "$wanted" ]]; then
    echo "$extras" >>"$stamp"
  else
    printf '%s\n%s\n' "$wanted" "$extras" >"$stamp"
  fi
  echo "Installed in $((SECONDS - started)) s"
}
