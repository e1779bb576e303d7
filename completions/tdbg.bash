# bash completion for tdbg. Written by `tdbg docs`; change the source, not this file.
# Each function below answers in $reply.

# commands below the command $1
_tdbg_commands() {
    case "$1" in
        '') reply='run profile report runs join status control view stacks filter-logs inspect-pages trace metrics flags explain doctor demo hook completions trust' ;;
        'runs') reply='ls upload prune' ;;
        'inspect-pages') reply='ls show stats find diff export html verify recover convert upload' ;;
        'trace') reply='show advise flame compare slice' ;;
        'metrics') reply='show dump plot compare sanity' ;;
        'flags') reply='list show scan doctor' ;;
        'hook') reply='install remove' ;;
        'completions') reply='install remove' ;;
        *) reply='' ;;
    esac
}

# options of the command $1
_tdbg_options() {
    case "$1" in
        '') reply='--version -h --help' ;;
        'run') reply='-f --flag --no-flag --preset --threshold --strict-flags --forbid-flags --inject --step-optimizer -l --level --max-overhead --allowance --measure-overhead --every --steps --ranks --keep-steps --capture --debugger --capture-stats --capture-every --capture-steps --capture-epochs --capture-phase --capture-samples --capture-on --capture-budget --capture-policy --capture-upload --stop-on --stack-signal --stop-before-update --fail-on --on-finding --notify --to --when --then --run-dir --name --share --tee --disk-budget --profile-name --log-level --progress-every --serve --preflight --dry-run --exec -q --quiet --color -h --help' ;;
        'profile') reply='-k --kind --wait --warmup --active --repeat --skip-first --window --window-on -f --flag --no-flag --preset --threshold --strict-flags --forbid-flags --inject --step-optimizer -l --level --max-overhead --allowance --measure-overhead --every --steps --ranks --keep-steps --capture --debugger --capture-stats --capture-every --capture-steps --capture-epochs --capture-phase --capture-samples --capture-on --capture-budget --capture-policy --capture-upload --stop-on --stack-signal --stop-before-update --fail-on --on-finding --notify --to --when --then --run-dir --name --share --tee --disk-budget --profile-name --log-level --progress-every --serve --dry-run --exec -q --quiet --color -h --help' ;;
        'report') reply='--all --markdown --note --fail-on --html --force --to --json --color -h --help' ;;
        'runs') reply='-h --help' ;;
        'runs ls') reply='--limit --json --color -h --help' ;;
        'runs upload') reply='--color -h --help' ;;
        'runs prune') reply='--keep --older --dry-run --yes --color -h --help' ;;
        'join') reply='-o --output --color -h --help' ;;
        'status') reply='--watch --json --color -h --help' ;;
        'control') reply='-l --level -f --flag --no-flag --for --at-step --profile --clear-history --timeout --json --color -h --help' ;;
        'view') reply='--port --open --routes --control -h --help' ;;
        'stacks') reply='--all --json --color -h --help' ;;
        'filter-logs') reply='-f --flag -x --exclude-flag -p --prefix -r --ranks -t --type --log-level --steps --since --until -e --regex -v --invert-match --map -A --after-context -B --before-context -C --context --merge -F --follow --collapse --diverge --silent --errors --count --stats --list-prefixes -o --output --format --log-format --jobs --color -h --help' ;;
        'inspect-pages') reply='-h --help' ;;
        'inspect-pages ls') reply='--datapoints --ranks --rank --steps --step --epochs --epoch --phase --json --color -h --help' ;;
        'inspect-pages show') reply='--slice --ranks --rank --steps --step --epochs --epoch --phase --nth --image --json --color -h --help' ;;
        'inspect-pages stats') reply='--layer --group-by --scores --ranks --rank --steps --step --epochs --epoch --phase --json --color -h --help' ;;
        'inspect-pages find') reply='--sort --limit --layer --group-by --scores --ranks --rank --steps --step --epochs --epoch --phase --json --color -h --help' ;;
        'inspect-pages diff') reply='--layer --tolerance --pair-by --epochs --ranks --top --json --color -h --help' ;;
        'inspect-pages export') reply='-o --output --layer --keys --key --ranks --rank --steps --step --epochs --epoch --phase --force --json --color -h --help' ;;
        'inspect-pages html') reply='-o --output --layer --keys --key --ranks --rank --steps --step --epochs --epoch --phase --limit --size --force --json --color -h --help' ;;
        'inspect-pages verify') reply='--json --color -h --help' ;;
        'inspect-pages recover') reply='--ignore-live-writer --json --color -h --help' ;;
        'inspect-pages convert') reply='-o --output --page-size --json --color -h --help' ;;
        'inspect-pages upload') reply='--json --color -h --help' ;;
        'trace') reply='-h --help' ;;
        'trace show') reply='--ranks --rank --windows --top --shapes --html --force --perfetto --json --color -h --help' ;;
        'trace advise') reply='--ranks --rank --windows --threshold --fail-on --json --color -h --help' ;;
        'trace flame') reply='--ranks --rank --windows --by --top --depth --folded --json --color -h --help' ;;
        'trace compare') reply='--tolerance --save --ranks --rank --windows --top --json --color -h --help' ;;
        'trace slice') reply='-o --output --steps --step --force --ranks --rank --windows --color -h --help' ;;
        'metrics') reply='-h --help' ;;
        'metrics show') reply='--ranks --rank -k --key --json --color -h --help' ;;
        'metrics dump') reply='--ranks --rank -k --key --after-step --phase --series --states --format -o --out --force --json --color -h --help' ;;
        'metrics plot') reply='--ranks --rank --smooth --html --force --height --json --color -h --help' ;;
        'metrics compare') reply='--ranks --rank -k --key --tolerance --json --color -h --help' ;;
        'metrics sanity') reply='--ranks --rank --fail-on --json --color -h --help' ;;
        'flags') reply='-h --help' ;;
        'flags list') reply='--json --color -h --help' ;;
        'flags show') reply='--json --color -h --help' ;;
        'flags scan') reply='-o --output --function --color -h --help' ;;
        'flags doctor') reply='--json --color -h --help' ;;
        'explain') reply='--json --color -h --help' ;;
        'doctor') reply='--json --color -h --help' ;;
        'demo') reply='--fault --train-steps --seed --run-dir --color -h --help' ;;
        'hook') reply='-h --help' ;;
        'hook install') reply='--python --color -h --help' ;;
        'hook remove') reply='--python --color -h --help' ;;
        'completions') reply='-h --help' ;;
        'completions install') reply='--shell --color -h --help' ;;
        'completions remove') reply='--shell --color -h --help' ;;
        'trust') reply='--remove --list --json --color -h --help' ;;
        *) reply='' ;;
    esac
}

# kind of the value that option $2 of the command $1 takes
_tdbg_kind() {
    case "$1 $2" in
        'run -f'|'run --flag') reply='FLAG' ;;
        'run --no-flag') reply='FLAG' ;;
        'run --preset') reply='PRESET' ;;
        'run --threshold') reply='BOUND' ;;
        'run --inject') reply='MODE' ;;
        'run --step-optimizer') reply='CLASS' ;;
        'run -l'|'run --level') reply='LEVEL' ;;
        'run --max-overhead') reply='PCT' ;;
        'run --allowance') reply='SECONDS' ;;
        'run --measure-overhead') reply='N' ;;
        'run --every') reply='N' ;;
        'run --steps') reply='RANGE' ;;
        'run --ranks') reply='RANGE' ;;
        'run --keep-steps') reply='N' ;;
        'run --capture') reply='LAYERS' ;;
        'run --debugger') reply='DEBUGGER' ;;
        'run --capture-every') reply='N' ;;
        'run --capture-steps') reply='RANGE' ;;
        'run --capture-epochs') reply='EPOCHS' ;;
        'run --capture-phase') reply='PHASE' ;;
        'run --capture-samples') reply='SAMPLES' ;;
        'run --capture-on') reply='CODE|SEVERITY' ;;
        'run --capture-budget') reply='SIZE' ;;
        'run --capture-policy') reply='POLICY' ;;
        'run --capture-upload') reply='URL' ;;
        'run --stop-on') reply='CODE|SEVERITY' ;;
        'run --stack-signal') reply='SIGNAL' ;;
        'run --fail-on') reply='SEVERITY' ;;
        'run --on-finding') reply='COMMAND' ;;
        'run --notify') reply='URL' ;;
        'run --to') reply='SINK' ;;
        'run --when') reply='CONDITION' ;;
        'run --then') reply='ACTION' ;;
        'run --run-dir') reply='DIR' ;;
        'run --name') reply='NAME' ;;
        'run --disk-budget') reply='SIZE' ;;
        'run --profile-name') reply='NAME' ;;
        'run --log-level') reply='LOG_LEVEL' ;;
        'run --progress-every') reply='SECONDS' ;;
        'run --serve') reply='PORT' ;;
        'run --color') reply='WHEN' ;;
        'profile -k'|'profile --kind') reply='KIND' ;;
        'profile --wait') reply='N' ;;
        'profile --warmup') reply='N' ;;
        'profile --active') reply='N' ;;
        'profile --repeat') reply='N' ;;
        'profile --skip-first') reply='N' ;;
        'profile --window') reply='RANGE' ;;
        'profile --window-on') reply='CODE|SEVERITY' ;;
        'profile -f'|'profile --flag') reply='FLAG' ;;
        'profile --no-flag') reply='FLAG' ;;
        'profile --preset') reply='PRESET' ;;
        'profile --threshold') reply='BOUND' ;;
        'profile --inject') reply='MODE' ;;
        'profile --step-optimizer') reply='CLASS' ;;
        'profile -l'|'profile --level') reply='LEVEL' ;;
        'profile --max-overhead') reply='PCT' ;;
        'profile --allowance') reply='SECONDS' ;;
        'profile --measure-overhead') reply='N' ;;
        'profile --every') reply='N' ;;
        'profile --steps') reply='RANGE' ;;
        'profile --ranks') reply='RANGE' ;;
        'profile --keep-steps') reply='N' ;;
        'profile --capture') reply='LAYERS' ;;
        'profile --debugger') reply='DEBUGGER' ;;
        'profile --capture-every') reply='N' ;;
        'profile --capture-steps') reply='RANGE' ;;
        'profile --capture-epochs') reply='EPOCHS' ;;
        'profile --capture-phase') reply='PHASE' ;;
        'profile --capture-samples') reply='SAMPLES' ;;
        'profile --capture-on') reply='CODE|SEVERITY' ;;
        'profile --capture-budget') reply='SIZE' ;;
        'profile --capture-policy') reply='POLICY' ;;
        'profile --capture-upload') reply='URL' ;;
        'profile --stop-on') reply='CODE|SEVERITY' ;;
        'profile --stack-signal') reply='SIGNAL' ;;
        'profile --fail-on') reply='SEVERITY' ;;
        'profile --on-finding') reply='COMMAND' ;;
        'profile --notify') reply='URL' ;;
        'profile --to') reply='SINK' ;;
        'profile --when') reply='CONDITION' ;;
        'profile --then') reply='ACTION' ;;
        'profile --run-dir') reply='DIR' ;;
        'profile --name') reply='NAME' ;;
        'profile --disk-budget') reply='SIZE' ;;
        'profile --profile-name') reply='NAME' ;;
        'profile --log-level') reply='LOG_LEVEL' ;;
        'profile --progress-every') reply='SECONDS' ;;
        'profile --serve') reply='PORT' ;;
        'profile --color') reply='WHEN' ;;
        'report --note') reply='TEXT' ;;
        'report --fail-on') reply='SEVERITY' ;;
        'report --html') reply='FILE' ;;
        'report --to') reply='SINK' ;;
        'report --color') reply='WHEN' ;;
        'runs ls --limit') reply='N' ;;
        'runs ls --color') reply='WHEN' ;;
        'runs upload --color') reply='WHEN' ;;
        'runs prune --keep') reply='N' ;;
        'runs prune --older') reply='AGE' ;;
        'runs prune --color') reply='WHEN' ;;
        'join -o'|'join --output') reply='DIR' ;;
        'join --color') reply='WHEN' ;;
        'status --color') reply='WHEN' ;;
        'control -l'|'control --level') reply='LEVEL' ;;
        'control -f'|'control --flag') reply='FLAG' ;;
        'control --no-flag') reply='FLAG' ;;
        'control --for') reply='N' ;;
        'control --at-step') reply='N' ;;
        'control --profile') reply='N' ;;
        'control --timeout') reply='SECONDS' ;;
        'control --color') reply='WHEN' ;;
        'view --port') reply='PORT' ;;
        'stacks --color') reply='WHEN' ;;
        'filter-logs -f'|'filter-logs --flag') reply='FLAG' ;;
        'filter-logs -x'|'filter-logs --exclude-flag') reply='FLAG' ;;
        'filter-logs -p'|'filter-logs --prefix') reply='PREFIX' ;;
        'filter-logs -r'|'filter-logs --ranks') reply='RANGE' ;;
        'filter-logs -t'|'filter-logs --type') reply='NAME' ;;
        'filter-logs --log-level') reply='LOG_LEVEL' ;;
        'filter-logs --steps') reply='RANGE' ;;
        'filter-logs --since') reply='TIME' ;;
        'filter-logs --until') reply='TIME' ;;
        'filter-logs -e'|'filter-logs --regex') reply='REGEX' ;;
        'filter-logs --map') reply='FILE' ;;
        'filter-logs -A'|'filter-logs --after-context') reply='N' ;;
        'filter-logs -B'|'filter-logs --before-context') reply='N' ;;
        'filter-logs -C'|'filter-logs --context') reply='N' ;;
        'filter-logs -o'|'filter-logs --output') reply='FILE' ;;
        'filter-logs --format') reply='FORMAT' ;;
        'filter-logs --log-format') reply='FORMAT' ;;
        'filter-logs --jobs') reply='N' ;;
        'filter-logs --color') reply='WHEN' ;;
        'inspect-pages ls --ranks'|'inspect-pages ls --rank') reply='RANGE' ;;
        'inspect-pages ls --steps'|'inspect-pages ls --step') reply='RANGE' ;;
        'inspect-pages ls --epochs'|'inspect-pages ls --epoch') reply='RANGE' ;;
        'inspect-pages ls --phase') reply='PHASE' ;;
        'inspect-pages ls --color') reply='WHEN' ;;
        'inspect-pages show --slice') reply='SLICE' ;;
        'inspect-pages show --ranks'|'inspect-pages show --rank') reply='RANGE' ;;
        'inspect-pages show --steps'|'inspect-pages show --step') reply='RANGE' ;;
        'inspect-pages show --epochs'|'inspect-pages show --epoch') reply='RANGE' ;;
        'inspect-pages show --phase') reply='PHASE' ;;
        'inspect-pages show --nth') reply='N' ;;
        'inspect-pages show --image') reply='IMAGE' ;;
        'inspect-pages show --color') reply='WHEN' ;;
        'inspect-pages stats --layer') reply='GLOB' ;;
        'inspect-pages stats --group-by') reply='FIELD' ;;
        'inspect-pages stats --scores') reply='FILE' ;;
        'inspect-pages stats --ranks'|'inspect-pages stats --rank') reply='RANGE' ;;
        'inspect-pages stats --steps'|'inspect-pages stats --step') reply='RANGE' ;;
        'inspect-pages stats --epochs'|'inspect-pages stats --epoch') reply='RANGE' ;;
        'inspect-pages stats --phase') reply='PHASE' ;;
        'inspect-pages stats --color') reply='WHEN' ;;
        'inspect-pages find --sort') reply='FIELD' ;;
        'inspect-pages find --limit') reply='N' ;;
        'inspect-pages find --layer') reply='GLOB' ;;
        'inspect-pages find --group-by') reply='FIELD' ;;
        'inspect-pages find --scores') reply='FILE' ;;
        'inspect-pages find --ranks'|'inspect-pages find --rank') reply='RANGE' ;;
        'inspect-pages find --steps'|'inspect-pages find --step') reply='RANGE' ;;
        'inspect-pages find --epochs'|'inspect-pages find --epoch') reply='RANGE' ;;
        'inspect-pages find --phase') reply='PHASE' ;;
        'inspect-pages find --color') reply='WHEN' ;;
        'inspect-pages diff --layer') reply='GLOB' ;;
        'inspect-pages diff --tolerance') reply='SHARE' ;;
        'inspect-pages diff --pair-by') reply='NAME' ;;
        'inspect-pages diff --epochs') reply='RANGE' ;;
        'inspect-pages diff --ranks') reply='RANGE' ;;
        'inspect-pages diff --top') reply='N' ;;
        'inspect-pages diff --color') reply='WHEN' ;;
        'inspect-pages export -o'|'inspect-pages export --output') reply='FILE|DIR' ;;
        'inspect-pages export --layer') reply='GLOB' ;;
        'inspect-pages export --keys'|'inspect-pages export --key') reply='KEY' ;;
        'inspect-pages export --ranks'|'inspect-pages export --rank') reply='RANGE' ;;
        'inspect-pages export --steps'|'inspect-pages export --step') reply='RANGE' ;;
        'inspect-pages export --epochs'|'inspect-pages export --epoch') reply='RANGE' ;;
        'inspect-pages export --phase') reply='PHASE' ;;
        'inspect-pages export --color') reply='WHEN' ;;
        'inspect-pages html -o'|'inspect-pages html --output') reply='FILE' ;;
        'inspect-pages html --layer') reply='GLOB' ;;
        'inspect-pages html --keys'|'inspect-pages html --key') reply='KEY' ;;
        'inspect-pages html --ranks'|'inspect-pages html --rank') reply='RANGE' ;;
        'inspect-pages html --steps'|'inspect-pages html --step') reply='RANGE' ;;
        'inspect-pages html --epochs'|'inspect-pages html --epoch') reply='RANGE' ;;
        'inspect-pages html --phase') reply='PHASE' ;;
        'inspect-pages html --limit') reply='N' ;;
        'inspect-pages html --size') reply='SIZE' ;;
        'inspect-pages html --color') reply='WHEN' ;;
        'inspect-pages verify --color') reply='WHEN' ;;
        'inspect-pages recover --color') reply='WHEN' ;;
        'inspect-pages convert -o'|'inspect-pages convert --output') reply='DIR' ;;
        'inspect-pages convert --page-size') reply='SIZE' ;;
        'inspect-pages convert --color') reply='WHEN' ;;
        'inspect-pages upload --color') reply='WHEN' ;;
        'trace show --ranks'|'trace show --rank') reply='RANGE' ;;
        'trace show --windows') reply='NAME' ;;
        'trace show --top') reply='N' ;;
        'trace show --html') reply='FILE' ;;
        'trace show --perfetto') reply='FILE' ;;
        'trace show --color') reply='WHEN' ;;
        'trace advise --ranks'|'trace advise --rank') reply='RANGE' ;;
        'trace advise --windows') reply='NAME' ;;
        'trace advise --threshold') reply='BOUND' ;;
        'trace advise --fail-on') reply='NAME' ;;
        'trace advise --color') reply='WHEN' ;;
        'trace flame --ranks'|'trace flame --rank') reply='RANGE' ;;
        'trace flame --windows') reply='NAME' ;;
        'trace flame --by') reply='NAME' ;;
        'trace flame --top') reply='N' ;;
        'trace flame --depth') reply='N' ;;
        'trace flame --color') reply='WHEN' ;;
        'trace compare --tolerance') reply='SHARE' ;;
        'trace compare --save') reply='FILE' ;;
        'trace compare --ranks'|'trace compare --rank') reply='RANGE' ;;
        'trace compare --windows') reply='NAME' ;;
        'trace compare --top') reply='N' ;;
        'trace compare --color') reply='WHEN' ;;
        'trace slice -o'|'trace slice --output') reply='FILE' ;;
        'trace slice --steps'|'trace slice --step') reply='RANGE' ;;
        'trace slice --ranks'|'trace slice --rank') reply='RANGE' ;;
        'trace slice --windows') reply='NAME' ;;
        'trace slice --color') reply='WHEN' ;;
        'metrics show --ranks'|'metrics show --rank') reply='RANGE' ;;
        'metrics show -k'|'metrics show --key') reply='GLOB' ;;
        'metrics show --color') reply='WHEN' ;;
        'metrics dump --ranks'|'metrics dump --rank') reply='RANGE' ;;
        'metrics dump -k'|'metrics dump --key') reply='GLOB' ;;
        'metrics dump --after-step') reply='N' ;;
        'metrics dump --phase') reply='PHASE' ;;
        'metrics dump --format') reply='FORMAT' ;;
        'metrics dump -o'|'metrics dump --out') reply='FILE' ;;
        'metrics dump --color') reply='WHEN' ;;
        'metrics plot --ranks'|'metrics plot --rank') reply='RANGE' ;;
        'metrics plot --smooth') reply='WEIGHT' ;;
        'metrics plot --html') reply='FILE' ;;
        'metrics plot --height') reply='N' ;;
        'metrics plot --color') reply='WHEN' ;;
        'metrics compare --ranks'|'metrics compare --rank') reply='RANGE' ;;
        'metrics compare -k'|'metrics compare --key') reply='GLOB' ;;
        'metrics compare --tolerance') reply='SHARE' ;;
        'metrics compare --color') reply='WHEN' ;;
        'metrics sanity --ranks'|'metrics sanity --rank') reply='RANGE' ;;
        'metrics sanity --fail-on') reply='SEVERITY' ;;
        'metrics sanity --color') reply='WHEN' ;;
        'flags list --color') reply='WHEN' ;;
        'flags show --color') reply='WHEN' ;;
        'flags scan -o'|'flags scan --output') reply='FILE' ;;
        'flags scan --function') reply='NAME' ;;
        'flags scan --color') reply='WHEN' ;;
        'flags doctor --color') reply='WHEN' ;;
        'explain --color') reply='WHEN' ;;
        'doctor --color') reply='WHEN' ;;
        'demo --fault') reply='FAULT' ;;
        'demo --train-steps') reply='N' ;;
        'demo --seed') reply='SEED' ;;
        'demo --run-dir') reply='DIR' ;;
        'demo --color') reply='WHEN' ;;
        'hook install --python') reply='FILE' ;;
        'hook install --color') reply='WHEN' ;;
        'hook remove --python') reply='FILE' ;;
        'hook remove --color') reply='WHEN' ;;
        'completions install --shell') reply='NAME' ;;
        'completions install --color') reply='WHEN' ;;
        'completions remove --shell') reply='NAME' ;;
        'completions remove --color') reply='WHEN' ;;
        'trust --color') reply='WHEN' ;;
        *) reply='' ;;
    esac
}

# kind of the arguments of the command $1
_tdbg_argument() {
    case "$1" in
        'run') reply='COMMAND' ;;
        'profile') reply='COMMAND' ;;
        'report') reply='RUN' ;;
        'runs ls') reply='DIR' ;;
        'runs upload') reply='RUN|URL' ;;
        'runs prune') reply='DIR' ;;
        'join') reply='DIR' ;;
        'status') reply='RUN' ;;
        'control') reply='RUN' ;;
        'view') reply='RUN' ;;
        'stacks') reply='RUN' ;;
        'filter-logs') reply='FILE' ;;
        'inspect-pages ls') reply='PATH' ;;
        'inspect-pages show') reply='PATH|KEY' ;;
        'inspect-pages stats') reply='PATH' ;;
        'inspect-pages find') reply='PATH|CONDITION' ;;
        'inspect-pages diff') reply='PATH' ;;
        'inspect-pages export') reply='PATH|TEXT' ;;
        'inspect-pages html') reply='PATH' ;;
        'inspect-pages verify') reply='PATH' ;;
        'inspect-pages recover') reply='PATH' ;;
        'inspect-pages convert') reply='PATH' ;;
        'inspect-pages upload') reply='PATH|URL' ;;
        'trace show') reply='PATH' ;;
        'trace advise') reply='PATH' ;;
        'trace flame') reply='PATH' ;;
        'trace compare') reply='PATH' ;;
        'trace slice') reply='PATH' ;;
        'metrics show') reply='PATH' ;;
        'metrics dump') reply='PATH' ;;
        'metrics plot') reply='RUN|KEY' ;;
        'metrics compare') reply='PATH' ;;
        'metrics sanity') reply='PATH' ;;
        'flags show') reply='FLAG' ;;
        'flags scan') reply='DIR' ;;
        'flags doctor') reply='RUN' ;;
        'explain') reply='CODE|ADVICE' ;;
        'trust') reply='DIR' ;;
        *) reply='' ;;
    esac
}

# values of the kind $1
_tdbg_words() {
    case "$1" in
        'FLAG') reply='LOSS SCHEDULING CHECKPOINT DATALOADER AUGMENTATION OPTIMIZER DISTRIBUTED MODEL_BUILD TRAINING_LOOP VALIDATION_METRICS DUMP_METRICS WANDB_METRICS LOSS.TAXONOMY_SMOOTHING LOSS.NULL_MASKING LOSS.CLASS_WEIGHTING LOSS.GRADNORM_MEMORY LOSS.GRADNORM_METRICS LOSS.VERBOSE_GRADNORM_LOGGING AUTOGRAD_ANOMALY PROFILER MEMORY GRADIENTS FORWARD BACKWARD DEVICE AMP VALIDATION EARLY_STOPPING LR' ;;
        'LEVEL') reply='off basic advanced extreme' ;;
        'MODE') reply='auto yacs hydra argparse argv env none' ;;
        'PRESET') reply='hierarchical distributed data schedule gradnorm numerics memory' ;;
        'SEVERITY') reply='never info warning error critical' ;;
        'CODE') reply='TD-A001 TD-A002 TD-A003 TD-C001 TD-C002 TD-C003 TD-C004 TD-C005 TD-C006 TD-C007 TD-C008 TD-C009 TD-C010 TD-C011 TD-C012 TD-C013 TD-C014 TD-C015 TD-C016 TD-C017 TD-C018 TD-C019 TD-C020 TD-C021 TD-C022 TD-C023 TD-C024 TD-C025 TD-C026 TD-C027 TD-C028 TD-C029 TD-C030 TD-C031 TD-C032 TD-D001 TD-D002 TD-D003 TD-D004 TD-D005 TD-D006 TD-D007 TD-D008 TD-D009 TD-D010 TD-D011 TD-D012 TD-D013 TD-D014 TD-D015 TD-G001 TD-G002 TD-G003 TD-G004 TD-G005 TD-G006 TD-L001 TD-L002 TD-L003 TD-L004 TD-L005 TD-L006 TD-L007 TD-L008 TD-L009 TD-L010 TD-L011 TD-L012 TD-L013 TD-L014 TD-L015 TD-L016 TD-L017 TD-L018 TD-L019 TD-L020 TD-L021 TD-L022 TD-M001 TD-M002 TD-M003 TD-N001 TD-N002 TD-N003 TD-N004 TD-N005 TD-P001 TD-P002 TD-P003 TD-P004 TD-P005 TD-P006 TD-P007 TD-R001 TD-R002 TD-R003 TD-R004 TD-R005 TD-R006 TD-R007 TD-R008 TD-R009 TD-R010 TD-R011 TD-S001 TD-S002 TD-S003 TD-S004 TD-S005 TD-S006 TD-S007 TD-S008 TD-S009 TD-S010 TD-S011 TD-S012' ;;
        'ADVICE') reply='TD-K001 TD-K002 TD-K003 TD-K004 TD-K005 TD-K006 TD-K007 TD-K008 TD-K009 TD-K010 TD-K011 TD-K012 TD-P101 TD-P102 TD-P103 TD-P104 TD-P105 TD-P106 TD-P107 TD-P108 TD-P109 TD-P110 TD-P111 TD-P112 TD-P113 TD-P114 TD-P115 TD-P116 TD-P117' ;;
        'LOG_LEVEL') reply='DEBUG STATS INFO WARNING ERROR CRITICAL' ;;
        'FAULT') reply='none forward-inf backward-nan inf-grad bad-batch lr-spike' ;;
        'IMAGE') reply='auto never kitty iterm sixel' ;;
        'KIND') reply='light memory shapes stacks flops full' ;;
        'SINK') reply='tensorboard wandb' ;;
        'DEBUGGER') reply='activation-stats attention feature-map gradcam gradients layer-output inputs labels outputs' ;;
        'WHEN') reply='auto always never' ;;
        *) reply='' ;;
    esac
}

_tdbg_runs() {
    local run
    reply=''
    for run in tdbg_runs/*/run.json; do
        [[ -e $run ]] || continue
        run=${run%/run.json}
        reply+="${run##*/} "
    done
}

# Offer the values of the kinds in $1 (joined by a bar) that begin with $cur.
_tdbg_offer() {
    local kind reply IFS='|'
    for kind in $1; do
        IFS=$' \t\n'
        case $kind in
            FILE|PATH) compopt -o default 2>/dev/null || COMPREPLY+=($(compgen -f -- "$cur")) ;;
            DIR) compopt -o dirnames 2>/dev/null || COMPREPLY+=($(compgen -d -- "$cur")) ;;
            RUN) _tdbg_runs; COMPREPLY+=($(compgen -W "$reply" -- "$cur"))
                 compopt -o dirnames -o plusdirs 2>/dev/null ;;
            *) _tdbg_words "$kind"; COMPREPLY+=($(compgen -W "$reply" -- "$cur")) ;;
        esac
    done
}

# Complete the wrapped command, whose first word is number $1.
_tdbg_wrapped() {
    if declare -F _comp_command_offset >/dev/null; then
        _comp_command_offset "$1"
    elif declare -F _command_offset >/dev/null; then
        _command_offset "$1"
    elif (( COMP_CWORD == $1 )); then
        COMPREPLY=($(compgen -c -- "$cur"))
        compopt -o default 2>/dev/null
    else
        compopt -o default 2>/dev/null || COMPREPLY=($(compgen -f -- "$cur"))
    fi
}

_tdbg() {
    local cur=${COMP_WORDS[COMP_CWORD]} path='' kind='' word reply i
    COMPREPLY=()
    for (( i = 1; i < COMP_CWORD; i++ )); do
        word=${COMP_WORDS[i]}
        if [[ $word == '=' ]]; then
            [[ -n $kind ]] || (( i++ ))
        elif [[ -n $kind ]]; then
            kind=''
        elif [[ $word == -- ]]; then
            _tdbg_argument "$path"
            [[ $reply == COMMAND ]] && { _tdbg_wrapped $(( i + 1 )); return; }
        elif [[ $word == -* ]]; then
            _tdbg_kind "$path" "$word"
            kind=$reply
        else
            _tdbg_commands "$path"
            if [[ " $reply " == *" $word "* ]]; then
                path=${path:+$path }$word
            else
                _tdbg_argument "$path"
                [[ $reply == COMMAND ]] && { _tdbg_wrapped $i; return; }
            fi
        fi
    done
    [[ $cur == '=' ]] && cur=''
    if [[ -n $kind ]]; then
        _tdbg_offer "$kind"
    elif [[ $cur == -* ]]; then
        _tdbg_options "$path"
        COMPREPLY=($(compgen -W "$reply" -- "$cur"))
    else
        _tdbg_commands "$path"
        COMPREPLY=($(compgen -W "$reply" -- "$cur"))
        _tdbg_argument "$path"
        if [[ $reply == COMMAND ]]; then
            _tdbg_wrapped "$COMP_CWORD"
        elif [[ -n $reply ]]; then
            _tdbg_offer "$reply"
        fi
    fi
}

complete -F _tdbg tdbg
