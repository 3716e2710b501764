"""Commands of ``fredholm``: each parses its arguments and calls one function.

A command is as long as its options, each of which is named here once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ...errors import OptionError
from . import comparing, layers, show
from .reading import (
    PredictAloneFlag,
    as_command,
    as_override,
    as_overrides,
    as_read,
    parted,
    reading,
    reads_files,
    recipes_and_files,
    run_folders,
    unpacked,
)

# Imports inside functions load torch and the training room only for the commands that need them:
# completion and `fredholm --help` must answer at once.

app = typer.Typer(
    name="fredholm",
    help="Integral operators with learned kernels: train, evaluate and explain them.",
    epilog="Start with: fredholm train digits",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
data_app = typer.Typer(
    help="List, fetch and locate data sets; describe your own.",
    no_args_is_help=True,
)
app.add_typer(data_app, name="data")

Runs = Annotated[Path, typer.Option("--runs", help="Folder that holds all runs.")]
RunArgument = Annotated[
    Path,
    typer.Argument(
        help="A run's folder, e.g. runs/digits, or pretrained:NAME.",
        callback=unpacked,
        autocompletion=run_folders,
    ),
]
RecipeArgument = Annotated[
    str,
    typer.Argument(
        help="A built-in recipe's name or a YAML file.", autocompletion=recipes_and_files
    ),
]
NewRead = Annotated[
    list[str] | None,
    typer.Option(
        "--read",
        help="How new tables are written, where they differ from the training tables: "
        "separator=;, decimal=,, ... (repeatable).",
        metavar="KEY=VALUE",
    ),
]
NewStrict = Annotated[
    bool, typer.Option("--strict", help="Refuse new tables with words in columns of numbers.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(help="Changes to the recipe: key=value.", metavar="[KEY=VALUE]..."),
]
JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON.")]
WorkerFlag = Annotated[
    bool,
    typer.Option(
        "--worker",
        help="Share the trainings with every other worker of the same command, on any machine that "
        "sees the folder.",
    ),
]
TrustFlag = Annotated[
    bool,
    typer.Option(
        "--trust-code", help="Execute the Python files that a run folder's recipe imports."
    ),
]


def _default(value: Any, default: Any) -> Any:
    """Return the default of an option that is not given and whose default depends on others."""
    if value is None:
        return default
    return value


def _version(wanted: bool | None) -> None:
    if wanted:
        from ... import __version__

        typer.echo(f"fredholm {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool | None,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")] = False,
) -> None:
    pass


@app.command(
    epilog="fredholm train digits operator=softmax training.epochs=5 --name softmax-5\n\nfredholm "
    "train mydata/ --label outcome"
)
@reads_files()
def train(
    recipe: Annotated[
        str,
        typer.Argument(
            help="A built-in recipe's name, a YAML file, or your own data: ./data.csv, mydata/",
            autocompletion=recipes_and_files,
        ),
    ],
    overrides: Overrides = None,
    name: Annotated[
        str | None, typer.Option(help="The run's name (default: the recipe's).")
    ] = None,
    runs: Runs = Path("runs"),
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run where it stopped.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Delete the run of this name first.")
    ] = False,
    trust_code: TrustFlag = False,
    *,
    said: dict[str, Any],
) -> None:
    """Train a model on your own files or from a recipe; write it to RUNS/NAME."""
    from .. import training

    changes = [*as_overrides(said), *(overrides or [])]
    if name:
        changes.append(as_override("name", name))

    def check(found: training.Recipe) -> None:
        """Refuse a folder that is in use before anything slow happens."""
        if training.first_process():
            training.check_folder(runs / found.name, resume, overwrite)

    show.trusted_code(recipe, trust_code, changes)
    loaded = training.load_recipe(recipe, changes, trust_code=trust_code, first=check)
    result = training.train(
        loaded,
        runs / loaded.name,
        resume,
        overwrite=overwrite,
        report=typer.echo,
        trust_code=trust_code,
    )
    if training.first_process():
        show.run_result(result)


@app.command(epilog="fredholm plan cifar10 operator=ckconv data.batch_size=128")
def plan(
    recipe: RecipeArgument,
    overrides: Overrides = None,
    steps: Annotated[int, typer.Option(help="Number of training steps to time.", min=1)] = 3,
    json: JsonFlag = False,
    trust_code: TrustFlag = False,
) -> None:
    """Estimate what a training costs on this machine: parameters, memory, minutes."""
    from .. import training

    show.trusted_code(recipe, trust_code, overrides or [])
    loaded = training.load_recipe(recipe, overrides or [], trust_code=trust_code)
    show.run_plan(training.plan_run(loaded, steps, trust_code=trust_code), json)


@app.command(
    epilog="fredholm evaluate runs/digits\n\nfredholm evaluate runs/mydata new.csv finer.csv"
)
def evaluate(
    run: RunArgument,
    more: Annotated[
        list[str] | None,
        typer.Argument(
            help="New labelled files or folders, at any resolution; and changes that fit the "
            "weights: model.body.steps=12, operator.strategy=exact.",
            metavar="[FILE|KEY=VALUE]...",
        ),
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(help="Split to measure without files: train, val or test (default)."),
    ] = None,
    read: NewRead = None,
    strict: NewStrict = False,
    json: JsonFlag = False,
    trust_code: TrustFlag = False,
) -> None:
    """Measure a run, or the method a comparison recommends, on its test split or on new files."""
    from .. import training

    # Two uses: new files, or one split of the run's own data. Only the second has a split, so that
    # its default is filled in after the first.
    files, overrides = parted(more or [])
    show.refuse_split(split, bool(files))
    written = reading(read=read).get("read")
    if files:
        show.trusted_code(run, trust_code)
        result = training.evaluate_files(
            run,
            files,
            overrides,
            trust_code=trust_code,
            strict=strict,
            read=written,
        )
        show.evaluation(result, json)
        return
    if written is not None or strict:
        flag = "--strict" if written is None else "--read"
        raise OptionError(
            f"{flag}: expected new files with it, got none; leave it out: the run's own files are "
            "read as they were in training"
        )
    split = split or "test"
    show.trusted_code(run, trust_code)
    result = training.evaluate(run, split, overrides, trust_code=trust_code, report=show.note)
    show.evaluation(result, json)


@app.command(
    epilog="fredholm predict runs/digits seven.png\n\nfredholm predict runs/mydata new.csv --out "
    "answers.csv\n\ncat new.csv | fredholm predict runs/mydata - --out -\n\n"
    'fredholm predict runs/reviews --input "a fine film"'
)
def predict(
    run: RunArgument,
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Files or folders like the training data; - reads standard input.",
            metavar="[FILE]...",
        ),
    ] = None,
    texts: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            help="A text to classify (runs on texts); repeatable.",
            metavar="TEXT",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Write .csv, .json or .npz; - prints CSV to standard output."),
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Samples per batch.", min=1)] = 64,
    read: NewRead = None,
    strict: NewStrict = False,
    json: JsonFlag = False,
    trust_code: TrustFlag = False,
) -> None:
    """Predict new samples with a run's model, or with the method a comparison recommends."""
    from .. import training

    show.trusted_code(run, trust_code)
    # A dash means standard output: no file is written. It prints CSV, or JSON with --json.
    piped = str(out) == "-"
    if piped:
        out = None
    rows = training.predict(
        run,
        files or [],
        out=out,
        texts=texts or (),
        read=reading(read=read).get("read"),
        batch_size=batch_size,
        strict=strict,
        trust_code=trust_code,
    )
    if piped and not json:
        show.predictions_as_csv(rows)
    elif out is None:
        show.predictions(rows, json)
    else:
        typer.echo(f"{len(rows):,} predictions: {out}")


@app.command(
    epilog='fredholm generate runs/itnet-kjv --prompt "And God said" --length 100\n\n'
    'fredholm generate slm --prompt "What is an integral?" --chat'
)
def generate(
    run: Annotated[
        Path,
        typer.Argument(
            help="A run's folder, pretrained:NAME, or the folder of a language model, converted or "
            "not.",
            callback=unpacked,
        ),
    ],
    prompt: Annotated[str, typer.Option(help="Text to continue.")],
    length: Annotated[int, typer.Option(help="Number of tokens to generate.")] = 100,
    temperature: Annotated[
        float, typer.Option(help="Sampling temperature; 0 always takes the most probable token.")
    ] = 1.0,
    top_k: Annotated[
        int | None, typer.Option("--top-k", help="Sample among the K most probable tokens only.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed for sampling.")] = 0,
    chat: Annotated[
        bool, typer.Option("--chat", help="Wrap the prompt in the model's chat template.")
    ] = False,
    json: JsonFlag = False,
    trust_code: TrustFlag = False,
) -> None:
    """Generate text with a language model: a run's, or one of transformers."""
    from .. import training

    show.trusted_code(run, trust_code)
    result = training.generate(
        run,
        prompt,
        length=length,
        temperature=temperature,
        top_k=top_k,
        seed=seed,
        chat=chat,
        trust_code=trust_code,
    )
    show.generated(result, json, answered=chat)


@app.command(
    epilog="fredholm export runs/digits --to onnx\n\nfredholm export runs/digits --to aoti --fixed "
    "height --fixed width"
)
def export(
    run: RunArgument,
    to: Annotated[
        str,
        typer.Option(help="onnx, aoti (native code for this machine) or program (PyTorch's .pt2)."),
    ] = "onnx",
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Output file (default: RUN/model-TO with its suffix)."),
    ] = None,
    fixed: Annotated[
        list[str] | None,
        typer.Option("--fixed", help="Input dimension to fix at its training size."),
    ] = None,
    opset: Annotated[int | None, typer.Option(help="ONNX operator set, 18 or newer.")] = None,
    steps: Annotated[
        bool,
        typer.Option(
            "--steps",
            help="Export prefill and step of a causal text model, with their states (ONNX).",
        ),
    ] = False,
    trust_code: TrustFlag = False,
) -> None:
    """Export a run's model as a program that needs neither this library nor the run."""
    from .. import training

    show.trusted_code(run, trust_code)
    # Prefill and step are two programs, in a format of their own.
    if steps:
        show.refuse_with_steps(to=to != "onnx", fixed=bool(fixed), opset=opset is not None)
        for path in training.export_run_steps(run, out=out, trust_code=trust_code):
            typer.echo(f"program: {path} (answers as the model does, token by token)")
        return
    path = training.export_run(
        run,
        to,
        out=out,
        fixed=fixed or (),
        opset=opset,
        trust_code=trust_code,
    )
    typer.echo(f"program: {path} (answers as the model does at three sizes)")


@app.command(epilog="fredholm compress runs/digits --rank 16")
def compress(
    run: RunArgument,
    rank: Annotated[
        int, typer.Option(help="Total rank; each head gets an equal share, rounded up.")
    ],
    out: Annotated[
        Path | None, typer.Option(help="The new run's folder (default: RUN-rankRANK).")
    ] = None,
    steps: Annotated[int, typer.Option(help="Optimisation steps per layer.")] = 500,
    width: Annotated[
        int | None, typer.Option(help="Hidden width of the factors (default: the kernel's).")
    ] = None,
    samples: Annotated[int, typer.Option(help="Number of training samples to fit.")] = 256,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue an interrupted compression.")
    ] = False,
    json: JsonFlag = False,
    trust_code: TrustFlag = False,
) -> None:
    """Distil a run's exact operators into low-rank ones: a new run with a report."""
    from .. import training

    # Lines of progress would break the JSON, which goes to standard output too.
    say = None
    if not json:
        say = typer.echo

    # This only names the files that will be executed; compress_run refuses untrusted code.
    show.trusted_code(run, trust_code)
    options: dict[str, Any] = {"steps": steps, "width": width, "samples": samples}
    options |= {"resume": resume, "trust_code": trust_code}
    report = training.compress_run(run, rank, out=out, **options, report=say)
    show.compression(report, json)


@app.command(
    epilog="fredholm explain runs/digits\n\nfredholm explain my.models:resnet --module "
    "layer1.0.conv1 --shape 8,3,64,64"
)
def explain(
    source: Annotated[
        str,
        typer.Argument(
            help="A run's folder, pretrained:NAME, the folder of a model that looks at pictures, "
            "or package.module:factory; with --module of any model.",
            callback=unpacked,
        ),
    ],
    module: Annotated[
        str | None, typer.Option(help="Explain this layer of the model as an integral operator.")
    ] = None,
    inputs: Annotated[
        Path | None,
        typer.Option(help="Model inputs: an image, .npy, .npz or .safetensors."),
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="A data set whose test split provides the inputs.")
    ] = None,
    shape: Annotated[
        str | None, typer.Option(help="Shape of random inputs, such as 8,3,64,64.")
    ] = None,
    state: Annotated[Path | None, typer.Option(help="Weights for package.module:factory.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the page (default: report, or report-MODULE).")
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(help="Number of samples to read (default: 8; pictures: 16).", min=1),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Random seed of inputs and of drawn samples (default: 0).")
    ] = None,
    trust_code: TrustFlag = False,
) -> None:
    """Write a report about a run, a vision transformer, or one layer of any model."""
    # A run has a report of its own, without options.
    if module is None and not layers.is_model(source):
        from .. import training

        layers.refuse_without_module(
            inputs=inputs,
            data=data,
            shape=shape,
            state=state,
            out=out,
            samples=samples,
            seed=seed,
        )
        show.trusted_code(source, trust_code)
        typer.echo(f"report: {training.explain(Path(source), trust_code=trust_code)}")
        return
    from ... import explain as explaining

    # Without a number of samples or a seed, the two functions use defaults of their own.
    options = {"inputs": inputs, "data": data, "shape": layers.read_shape(shape)}
    options |= layers.given(samples=samples, seed=seed)
    if module is None:
        report = explaining.explain_pictures(source, out, state=state, **options)
    else:
        # The layer may belong to a run, whose recipe may import operators from the user's files.
        layers.import_run_code(source, trust_code)
        report = explaining.explain_module(source, module, out, state=state, **options)
    typer.echo(f"report: {report}")


@app.command(epilog="fredholm sweep digits operator=itnet,softmax training.epochs=5 seeds=3")
def sweep(
    recipe: RecipeArgument,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            help="key=a,b,c spans the grid; seeds=n repeats it.", metavar="[KEY=A,B,C]..."
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="The sweep's folder below RUNS (default: sweep-RECIPE).")
    ] = None,
    runs: Runs = Path("runs"),
    worker: WorkerFlag = False,
    trust_code: TrustFlag = False,
) -> None:
    """Train a grid of overrides and seeds; run again to resume."""
    from .. import training

    folder = runs / (name or f"sweep-{Path(recipe).stem}")
    show.trusted_code(recipe, trust_code)
    cells, table = training.sweep(
        recipe,
        overrides or [],
        folder,
        report=typer.echo,
        trust_code=trust_code,
        worker=worker,
    )
    show.sweep_table(table, folder)
    show.fail_if_any(cells)


@app.command(
    epilog="fredholm compare mydata/ --minutes 30\n\nfredholm compare --task "
    "digits,japanese-vowels --seeds 3"
)
@reads_files(PredictAloneFlag)
def compare(
    source: Annotated[
        str | None,
        typer.Argument(help="Your own data (./data.csv, mydata/) or a recipe."),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            help="Compare on tasks instead: 'all', names from --list, or recipes, comma-separated.",
            metavar="T[,T...]",
        ),
    ] = None,
    operators: Annotated[
        str | None,
        typer.Option(
            help="Operators: itnet,gru,{name: luna, channels: 4} (default: all, and baselines)."
        ),
    ] = None,
    budget: Annotated[
        str,
        typer.Option(help="Equal budget of all operators (with --task): params, flops or time."),
    ] = "params",
    minutes: Annotated[
        float | None,
        typer.Option(help="Total time (default: 30); with --budget time, of each training."),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(help="Seeds per finalist (default: 5); with --task, per operator (1)."),
    ] = None,
    change: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change the recipe of every task.", metavar="KEY=VALUE"),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the results; run again to resume (default: runs/compare-NAME, of "
            "tasks runs/compare)."
        ),
    ] = None,
    worker: WorkerFlag = False,
    list_only: Annotated[bool, typer.Option("--list", help="List the tasks.")] = False,
    *,
    said: dict[str, Any],
    trust_code: TrustFlag = False,
) -> None:
    """Find the operator for your data: compare all of them, and baselines, in the given minutes.

    With --task, write one table of every operator on every task.
    """
    if list_only:
        show.compared_tasks()
        return
    comparing.check(source, said=said, task=task, budget=budget, worker=worker)
    if source is not None:
        comparing.recommend(
            source,
            said,
            change or [],
            operators=operators,
            minutes=_default(minutes, 30.0),
            seeds=_default(seeds, 5),
            out=out,
            trust_code=trust_code,
        )
        return
    comparing.tabulate(
        _default(task, "digits"),
        operators,
        _default(out, Path("runs/compare")),
        setting=(budget, minutes, tuple(change or ())),
        seeds=_default(seeds, 1),
        worker=worker,
        trust_code=trust_code,
    )


@app.command(
    epilog="fredholm linearize runs/softmax --to luna --out converted\n\nfredholm linearize "
    "smollm2 --keep 12 --out slm"
)
def linearize(
    source: Annotated[
        str,
        typer.Argument(help="A folder of a transformers model or of a run, or weights by name."),
    ],
    out: Annotated[Path, typer.Option(help="Folder of the conversion: progress, model/, report.")],
    to: Annotated[
        str | None,
        typer.Option(
            help="The feature map: luna, hedgehog, t2r, performer, elu, ... (default luna, of a "
            "decoder hedgehog with softmax=true and keys with a map of their own)."
        ),
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="Data set for a transformers model (a run uses its own).")
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            help="classification, regression, steps or tokens; default that of a run's data, of a "
            "decoder tokens, of a model with one answer regression, else classification."
        ),
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option(help="Option of the feature map; repeatable.")
    ] = None,
    layer: Annotated[
        list[str] | None, typer.Option(help="Pattern of layers to convert; repeatable.")
    ] = None,
    untied: Annotated[
        bool, typer.Option("--untied", help="Give keys a feature map of their own.")
    ] = False,
    window: Annotated[
        int | None,
        typer.Option(
            help="The last tokens on which a decoder keeps softmax (default: 64); 0 for none.",
            min=0,
        ),
    ] = None,
    sinks: Annotated[
        int | None,
        typer.Option(
            help="The first tokens on which it keeps softmax beside a window (default: 4); 0 for "
            "none.",
            min=0,
        ),
    ] = None,
    store: Annotated[
        int,
        typer.Option(
            help="Tokens of each group of heads behind the window on which it keeps softmax too: "
            "those that the state answers worst.",
            min=0,
        ),
    ] = 0,
    decay: Annotated[
        str | None,
        typer.Option(
            help="head: the state of a decoder fades at a learned rate of each group of heads; "
            "token: at one that each token chooses."
        ),
    ] = None,
    keep: Annotated[
        str | None,
        typer.Option(
            help="Groups of heads of a decoder that keep full softmax: 18.2,17.1 (layer.group), "
            "the best 12 by a probe of retrieval, or 'probe' for all that retrieve."
        ),
    ] = None,
    probe: Annotated[
        bool,
        typer.Option(
            "--probe",
            help="Rank a decoder's groups of heads by retrieval, without training, whatever is "
            "kept; the ranking is in conversion.json.",
        ),
    ] = False,
    keep_refused: Annotated[
        bool,
        typer.Option("--keep-refused", help="Leave attention that cannot be converted unchanged."),
    ] = False,
    samples: Annotated[
        int | None, typer.Option(help="Training samples used (default: all).", min=1)
    ] = None,
    unseen: Annotated[
        str | None, typer.Option(help="Another data set for the receipt of a decoder.")
    ] = None,
    receipt: Annotated[bool, typer.Option(help="Measure what a decoder loses and saves.")] = True,
    needles: Annotated[
        int | None,
        typer.Option(help="Needles in the receipt (default 100).", min=1),
    ] = None,
    max_length: Annotated[
        int | None, typer.Option(help="Tokens per text; of a decoder, per training window.", min=1)
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Samples per batch (default 8; decoders 1).", min=1)
    ] = None,
    distil_epochs: Annotated[
        int | None,
        typer.Option(help="Epochs of the feature maps (default 1; 0 skips them).", min=0),
    ] = None,
    distil_steps: Annotated[
        int | None,
        typer.Option(help="Maximum steps of the feature maps (default all; decoders 60).", min=1),
    ] = None,
    distil_lr: Annotated[
        float | None, typer.Option(help="Learning rate of the maps (default 1e-2; decoders 3e-2).")
    ] = None,
    match_epochs: Annotated[
        int | None,
        typer.Option(help="Epochs on the teacher's logits (default 0; decoders 1).", min=0),
    ] = None,
    match_steps: Annotated[
        int | None,
        typer.Option(help="Maximum steps on the logits (default all; decoders 400).", min=1),
    ] = None,
    match_lr: Annotated[
        float | None, typer.Option(help="Learning rate on the logits (default 1e-4).")
    ] = None,
    reach: Annotated[
        int | None,
        typer.Option(
            help="Half of a decoder's windows lie anywhere below this position (default 4096 where "
            "positions are rotary); 0: all begin at the first.",
            min=0,
        ),
    ] = None,
    lengthen: Annotated[
        int | None,
        typer.Option(help="Add a short last stage with windows of this many tokens.", min=1),
    ] = None,
    lengthen_steps: Annotated[
        int | None, typer.Option(help="Steps of that stage (default 60).", min=1)
    ] = None,
    exercises: Annotated[
        float | None,
        typer.Option(
            help="Share of a decoder's training windows that ask for what lies far back: needles, "
            "lists and copies made from the texts (default none; 0.25 is a good start).",
            metavar="SHARE",
        ),
    ] = None,
    vary_window: Annotated[
        bool,
        typer.Option(
            "--vary-window",
            help="Learn with narrower windows in every second step, so that the state learns to "
            "answer.",
        ),
    ] = False,
    state: Annotated[
        bool,
        typer.Option(help="--no-state: window, sinks and store alone, a control trained alike."),
    ] = True,
    lora: Annotated[
        int | None,
        typer.Option(help="Train low-rank changes of this rank instead of all weights.", min=1),
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(help="Maximum epochs on the task (default 10; decoders 0).", min=0)
    ] = None,
    lr: Annotated[
        float | None, typer.Option(help="Learning rate on the task (default 1e-5).")
    ] = None,
    precision: Annotated[str, typer.Option(help="Precision of the training: 32 or bf16.")] = "32",
    length: Annotated[
        list[int] | None,
        typer.Option(help="Number of tokens at which to measure speed; repeatable."),
    ] = None,
    seed: Annotated[int, typer.Option()] = 0,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue an interrupted conversion.")
    ] = False,
    trust_code: TrustFlag = False,
) -> None:
    """Make a pretrained model's attention linear, train it to answer the same, and report."""
    from .. import training

    # Options of the stages. `layers.given` leaves out what is None, for which each stage has a
    # default; None also stands for a flag that is not set.
    size = {"batch_size": batch_size}
    varied = {"vary_window": vary_window or None}

    # Options of the stage `lengthen` are refused without --lengthen; --vary-window is no such
    # option, and must not look like one.
    lengthen_varied: dict[str, Any] = {}
    if lengthen:
        lengthen_varied = varied

    stages = {
        "distil": layers.given(
            epochs=distil_epochs,
            steps=distil_steps,
            lr=distil_lr,
            **varied,
            **size,
        ),
        "match": layers.given(
            epochs=match_epochs,
            steps=match_steps,
            lr=match_lr,
            lora=lora,
            **varied,
            **size,
        ),
        "lengthen": layers.given(steps=lengthen_steps, **lengthen_varied),
        "tune": layers.given(epochs=epochs, lr=lr, **size),
    }

    # A number is how many groups of heads to keep; other texts name groups, or are "probe".
    kept: int | str | None = keep
    if keep is not None and keep.isdecimal():
        kept = int(keep)
    replacement = {
        "options": layers.read_options(option),
        "layers": layer,
        "tied": not untied,
        "window": _default(window, "auto"),
        "sinks": _default(sinks, "auto"),
        "store": store,
        "decay": decay,
        "state": state,
        "keep": kept,
        "keep_refused": keep_refused,
    }
    course = {
        "task": task,
        "precision": precision,
        "seed": seed,
        "resume": resume,
        "say": typer.echo,
        "trust_code": trust_code,
    }
    samples_read: dict[str, Any] = {"samples": samples, "max_length": max_length, "reach": reach}
    samples_read |= {"longer": lengthen, "exercises": exercises}
    measured: dict[str, Any] = {"lengths": length or (), "receipt": receipt, "unseen": unseen}
    measured |= {"needles": needles, "ranked": probe}

    show.trusted_code(source, trust_code)
    result = training.linearize_source(
        source,
        to,
        data=data,
        out=out,
        **stages,
        **replacement,
        **course,
        **samples_read,
        **measured,
    )
    show.conversion(result.report, out)


@app.command(epilog="fredholm models 'itnet_*'")
def models(
    pattern: Annotated[str, typer.Argument(help="Names to list; * and ? are wildcards.")] = "*",
) -> None:
    """List models with their parameters and FLOPs."""
    show.models_table(pattern)


@app.command(epilog="fredholm operators --import my_kernel.py")
def operators(
    imports: Annotated[
        list[Path] | None,
        typer.Option(
            "--import",
            help="A Python file to execute, whose operators are listed too.",
            metavar="FILE",
        ),
    ] = None,
) -> None:
    """List operators by name, with a line about each."""
    show.operators_table(imports or [])


@data_app.command("list", epilog="fredholm data list")
def data_list() -> None:
    """List data sets with their source and licence."""
    show.data_table()


@data_app.command("fetch", epilog="fredholm data fetch fashion-mnist")
def data_fetch(
    name: Annotated[str, typer.Argument(help="A data set's name.")],
    force: Annotated[
        bool, typer.Option("--force", help="Fetch again, even if it is already there.")
    ] = False,
) -> None:
    """Download a data set, check it and unpack it."""
    from .. import data

    typer.echo(f"{name}: {data.fetch(name, force=force)}")


@data_app.command("path", epilog="fredholm data path mnist")
def data_path(name: Annotated[str, typer.Argument(help="A data set's name.")]) -> None:
    """Print the folder of a data set."""
    from .. import data

    typer.echo(data.dataset_path(name))


@data_app.command("describe", epilog="fredholm data describe mydata/ --label outcome")
@reads_files()
def data_describe(
    path: Annotated[Path, typer.Argument(help="Your file or folder.")],
    *,
    said: dict[str, Any],
    json: JsonFlag = False,
) -> None:
    """Show what your file or folder holds and how it would be read, without training."""
    from ..training import own_files

    # The command repeats what was guessed, so that it reads the files alike wherever it runs.
    facts = own_files.describe(path, said)
    facts["as_read"] = as_read(path, facts["schema"], "strict" in said)
    command = as_command(path, said)
    # Pasted as it is, the command must not stop at a run that is there already.
    free = own_files.free_name(facts["run"])
    if free != facts["run"]:
        command += f" --name {free}"
    show.description(facts, command, json)
