# fish completion for tdbg. Written by `tdbg docs`; change the source, not this file.

set -g __tdbg_paths 'run' 'profile' 'report' 'runs' 'runs ls' 'runs upload' 'runs prune' 'join' 'status' 'control' 'view' 'stacks' 'filter-logs' 'inspect-pages' 'inspect-pages ls' 'inspect-pages show' 'inspect-pages stats' 'inspect-pages find' 'inspect-pages diff' 'inspect-pages export' 'inspect-pages html' 'inspect-pages verify' 'inspect-pages recover' 'inspect-pages convert' 'inspect-pages upload' 'trace' 'trace show' 'trace advise' 'trace flame' 'trace compare' 'trace slice' 'metrics' 'metrics show' 'metrics dump' 'metrics plot' 'metrics compare' 'metrics sanity' 'flags' 'flags list' 'flags show' 'flags scan' 'flags doctor' 'explain' 'doctor' 'demo' 'hook' 'hook install' 'hook remove' 'completions' 'completions install' 'completions remove' 'trust'
set -g __tdbg_wrappers 'run' 'profile'
set -g __tdbg_valued 'run -f' 'run --flag' 'run --no-flag' 'run --preset' 'run --threshold' 'run --inject' 'run --step-optimizer' 'run -l' 'run --level' 'run --max-overhead' 'run --allowance' 'run --measure-overhead' 'run --every' 'run --steps' 'run --ranks' 'run --keep-steps' 'run --capture' 'run --debugger' 'run --capture-every' 'run --capture-steps' 'run --capture-epochs' 'run --capture-phase' 'run --capture-samples' 'run --capture-on' 'run --capture-budget' 'run --capture-policy' 'run --capture-upload' 'run --stop-on' 'run --stack-signal' 'run --fail-on' 'run --on-finding' 'run --notify' 'run --to' 'run --when' 'run --then' 'run --run-dir' 'run --name' 'run --disk-budget' 'run --profile-name' 'run --log-level' 'run --progress-every' 'run --serve' 'run --color' 'profile -k' 'profile --kind' 'profile --wait' 'profile --warmup' 'profile --active' 'profile --repeat' 'profile --skip-first' 'profile --window' 'profile --window-on' 'profile -f' 'profile --flag' 'profile --no-flag' 'profile --preset' 'profile --threshold' 'profile --inject' 'profile --step-optimizer' 'profile -l' 'profile --level' 'profile --max-overhead' 'profile --allowance' 'profile --measure-overhead' 'profile --every' 'profile --steps' 'profile --ranks' 'profile --keep-steps' 'profile --capture' 'profile --debugger' 'profile --capture-every' 'profile --capture-steps' 'profile --capture-epochs' 'profile --capture-phase' 'profile --capture-samples' 'profile --capture-on' 'profile --capture-budget' 'profile --capture-policy' 'profile --capture-upload' 'profile --stop-on' 'profile --stack-signal' 'profile --fail-on' 'profile --on-finding' 'profile --notify' 'profile --to' 'profile --when' 'profile --then' 'profile --run-dir' 'profile --name' 'profile --disk-budget' 'profile --profile-name' 'profile --log-level' 'profile --progress-every' 'profile --serve' 'profile --color' 'report --note' 'report --fail-on' 'report --html' 'report --to' 'report --color' 'runs ls --limit' 'runs ls --color' 'runs upload --color' 'runs prune --keep' 'runs prune --older' 'runs prune --color' 'join -o' 'join --output' 'join --color' 'status --color' 'control -l' 'control --level' 'control -f' 'control --flag' 'control --no-flag' 'control --for' 'control --at-step' 'control --profile' 'control --timeout' 'control --color' 'view --port' 'stacks --color' 'filter-logs -f' 'filter-logs --flag' 'filter-logs -x' 'filter-logs --exclude-flag' 'filter-logs -p' 'filter-logs --prefix' 'filter-logs -r' 'filter-logs --ranks' 'filter-logs -t' 'filter-logs --type' 'filter-logs --log-level' 'filter-logs --steps' 'filter-logs --since' 'filter-logs --until' 'filter-logs -e' 'filter-logs --regex' 'filter-logs --map' 'filter-logs -A' 'filter-logs --after-context' 'filter-logs -B' 'filter-logs --before-context' 'filter-logs -C' 'filter-logs --context' 'filter-logs -o' 'filter-logs --output' 'filter-logs --format' 'filter-logs --log-format' 'filter-logs --jobs' 'filter-logs --color' 'inspect-pages ls --ranks' 'inspect-pages ls --rank' 'inspect-pages ls --steps' 'inspect-pages ls --step' 'inspect-pages ls --epochs' 'inspect-pages ls --epoch' 'inspect-pages ls --phase' 'inspect-pages ls --color' 'inspect-pages show --slice' 'inspect-pages show --ranks' 'inspect-pages show --rank' 'inspect-pages show --steps' 'inspect-pages show --step' 'inspect-pages show --epochs' 'inspect-pages show --epoch' 'inspect-pages show --phase' 'inspect-pages show --nth' 'inspect-pages show --image' 'inspect-pages show --color' 'inspect-pages stats --layer' 'inspect-pages stats --group-by' 'inspect-pages stats --scores' 'inspect-pages stats --ranks' 'inspect-pages stats --rank' 'inspect-pages stats --steps' 'inspect-pages stats --step' 'inspect-pages stats --epochs' 'inspect-pages stats --epoch' 'inspect-pages stats --phase' 'inspect-pages stats --color' 'inspect-pages find --sort' 'inspect-pages find --limit' 'inspect-pages find --layer' 'inspect-pages find --group-by' 'inspect-pages find --scores' 'inspect-pages find --ranks' 'inspect-pages find --rank' 'inspect-pages find --steps' 'inspect-pages find --step' 'inspect-pages find --epochs' 'inspect-pages find --epoch' 'inspect-pages find --phase' 'inspect-pages find --color' 'inspect-pages diff --layer' 'inspect-pages diff --tolerance' 'inspect-pages diff --pair-by' 'inspect-pages diff --epochs' 'inspect-pages diff --ranks' 'inspect-pages diff --top' 'inspect-pages diff --color' 'inspect-pages export -o' 'inspect-pages export --output' 'inspect-pages export --layer' 'inspect-pages export --keys' 'inspect-pages export --key' 'inspect-pages export --ranks' 'inspect-pages export --rank' 'inspect-pages export --steps' 'inspect-pages export --step' 'inspect-pages export --epochs' 'inspect-pages export --epoch' 'inspect-pages export --phase' 'inspect-pages export --color' 'inspect-pages html -o' 'inspect-pages html --output' 'inspect-pages html --layer' 'inspect-pages html --keys' 'inspect-pages html --key' 'inspect-pages html --ranks' 'inspect-pages html --rank' 'inspect-pages html --steps' 'inspect-pages html --step' 'inspect-pages html --epochs' 'inspect-pages html --epoch' 'inspect-pages html --phase' 'inspect-pages html --limit' 'inspect-pages html --size' 'inspect-pages html --color' 'inspect-pages verify --color' 'inspect-pages recover --color' 'inspect-pages convert -o' 'inspect-pages convert --output' 'inspect-pages convert --page-size' 'inspect-pages convert --color' 'inspect-pages upload --color' 'trace show --ranks' 'trace show --rank' 'trace show --windows' 'trace show --top' 'trace show --html' 'trace show --perfetto' 'trace show --color' 'trace advise --ranks' 'trace advise --rank' 'trace advise --windows' 'trace advise --threshold' 'trace advise --fail-on' 'trace advise --color' 'trace flame --ranks' 'trace flame --rank' 'trace flame --windows' 'trace flame --by' 'trace flame --top' 'trace flame --depth' 'trace flame --color' 'trace compare --tolerance' 'trace compare --save' 'trace compare --ranks' 'trace compare --rank' 'trace compare --windows' 'trace compare --top' 'trace compare --color' 'trace slice -o' 'trace slice --output' 'trace slice --steps' 'trace slice --step' 'trace slice --ranks' 'trace slice --rank' 'trace slice --windows' 'trace slice --color' 'metrics show --ranks' 'metrics show --rank' 'metrics show -k' 'metrics show --key' 'metrics show --color' 'metrics dump --ranks' 'metrics dump --rank' 'metrics dump -k' 'metrics dump --key' 'metrics dump --after-step' 'metrics dump --phase' 'metrics dump --format' 'metrics dump -o' 'metrics dump --out' 'metrics dump --color' 'metrics plot --ranks' 'metrics plot --rank' 'metrics plot --smooth' 'metrics plot --html' 'metrics plot --height' 'metrics plot --color' 'metrics compare --ranks' 'metrics compare --rank' 'metrics compare -k' 'metrics compare --key' 'metrics compare --tolerance' 'metrics compare --color' 'metrics sanity --ranks' 'metrics sanity --rank' 'metrics sanity --fail-on' 'metrics sanity --color' 'flags list --color' 'flags show --color' 'flags scan -o' 'flags scan --output' 'flags scan --function' 'flags scan --color' 'flags doctor --color' 'explain --color' 'doctor --color' 'demo --fault' 'demo --train-steps' 'demo --seed' 'demo --run-dir' 'demo --color' 'hook install --python' 'hook install --color' 'hook remove --python' 'hook remove --color' 'completions install --shell' 'completions install --color' 'completions remove --shell' 'completions remove --color' 'trust --color'

# Prints the command typed so far, such as `flags list`; `run --` once the wrapped command has begun.
function __tdbg_state
    set -l typed (commandline -opc)
    set -l path
    set -l skip 0
    set -g __tdbg_begin (math (count $typed) + 1)
    for i in (seq 2 (count $typed))
        set -l word $typed[$i]
        if test $skip = 1
            set skip 0
            continue
        end
        switch $word
            case --
                if contains -- "$path" $__tdbg_wrappers
                    set -g __tdbg_begin (math $i + 1)
                    echo "$path --"
                    return
                end
            case '-*=*'
                continue
            case '-*'
                contains -- (string trim "$path $word") $__tdbg_valued; and set skip 1
            case '*'
                if contains -- (string trim "$path $word") $__tdbg_paths
                    set path (string trim "$path $word")
                else if contains -- "$path" $__tdbg_wrappers
                    set -g __tdbg_begin $i
                    echo "$path --"
                    return
                end
        end
    end
    echo "$path"
end

function __tdbg_at
    set -l state (__tdbg_state)
    test "$state" = "$argv[1]"
end

# Completes the wrapped command as if it stood alone.
function __tdbg_wrapped
    set -l typed (commandline -opc)
    set -l line
    if test $__tdbg_begin -le (count $typed)
        set line (string escape -- $typed[$__tdbg_begin..-1])
    end
    set -l word (commandline -ct)
    if set -q line[1]; or not string match -q -- '-*' "$word"
        complete -C (string join ' ' -- $line "$word")
    end
end

function __tdbg_runs
    for run in tdbg_runs/*/run.json
        string replace -r '^tdbg_runs/(.*)/run.json$' '$1' -- $run
    end
    __fish_complete_directories (commandline -ct) ''
end

function __tdbg_FLAG
    printf '%s\n' 'LOSS	all flags below LOSS'
    printf '%s\n' 'SCHEDULING	Log every decision of the training schedule: what is due, when, and why.'
    printf '%s\n' 'CHECKPOINT	Log saves and loads: path, bytes, seconds, missing, unexpected and resized keys.'
    printf '%s\n' 'DATALOADER	Log loader waits, batch shapes, dtypes and ranges, workers and samplers.'
    printf '%s\n' 'AUGMENTATION	Log each transform: its order, device, time, and the value range before and after.'
    printf '%s\n' 'OPTIMIZER	Log parameter groups, hyperparameters, update ratios and parameters that are never updated.'
    printf '%s\n' 'DISTRIBUTED	Log each collective\'s order, bytes and time, and the one that a hung job waits in (TD-R006).'
    printf '%s\n' 'MODEL_BUILD	Log the module tree as it is built: parameters, initial statistics, shared and dead ones.'
    printf '%s\n' 'TRAINING_LOOP	Log epoch and phase boundaries, accumulation, zero_grad and the order of calls.'
    printf '%s\n' 'VALIDATION_METRICS	Log what each validation pass computed, per phase, task and subset.'
    printf '%s\n' 'DUMP_METRICS	Dump the whole state of the metrics at each validation.'
    printf '%s\n' 'WANDB_METRICS	Log what is sent to Weights & Biases: keys, types, steps, failures.'
    printf '%s\n' 'LOSS.TAXONOMY_SMOOTHING	Log the label hierarchy, its distance matrix and the smoothed targets.'
    printf '%s\n' 'LOSS.NULL_MASKING	Log how null-labelled samples are found, counted and masked out of the loss.'
    printf '%s\n' 'LOSS.CLASS_WEIGHTING	Log class weights, effective sample numbers and each class\'s share of the loss.'
    printf '%s\n' 'LOSS.GRADNORM_MEMORY	Log memory during GradNorm\'s extra passes, tensor by tensor.'
    printf '%s\n' 'LOSS.GRADNORM_METRICS	Log task losses, relative rates, gradient norms and task weights of GradNorm.'
    printf '%s\n' 'LOSS.VERBOSE_GRADNORM_LOGGING	Log every intermediate value of each GradNorm update.'
    printf '%s\n' 'AUTOGRAD_ANOMALY	Run autograd\'s anomaly mode: an error in backward then names the line of the forward pass.'
    printf '%s\n' 'PROFILER	Capture a torch.profiler window from inside the run.'
    printf '%s\n' 'MEMORY	Log host and device memory per step: peaks, steady growth, and what holds it.'
    printf '%s\n' 'GRADIENTS	Log each parameter\'s gradient norm; exploding, vanishing, None and zero gradients.'
    printf '%s\n' 'FORWARD	Log shape, dtype and device of each module\'s output, and whether it is finite.'
    printf '%s\n' 'BACKWARD	Log the gradient flow through each module in the backward pass.'
    printf '%s\n' 'DEVICE	Log tensors with mismatched devices or dtypes, and copies inside the step.'
    printf '%s\n' 'AMP	Log autocast, the loss scale, skipped steps and overflow rates.'
    printf '%s\n' 'VALIDATION	Log when evaluation starts and ends, its samples, mode and memory.'
    printf '%s\n' 'EARLY_STOPPING	Log patience, best value and each decision of the early stopper.'
    printf '%s\n' 'LR	Log the scheduler and each change of the learning rate.'
end

function __tdbg_LEVEL
    printf '%s\n' 'off	nothing is recorded; nothing of the program is hooked'
    printf '%s\n' 'basic	loss, learning rate, times, gradient norms, the first bad value; at most 1 % of the time'
    printf '%s\n' 'advanced	also statistics of module outputs, weights and gradients, and memory; at most 3 %'
    printf '%s\n' 'extreme	also every module each time, exact extremes, more probes, a history; at most 10 %'
end

function __tdbg_MODE
    printf '%s\n' 'auto'
    printf '%s\n' 'yacs'
    printf '%s\n' 'hydra'
    printf '%s\n' 'argparse'
    printf '%s\n' 'argv'
    printf '%s\n' 'env'
    printf '%s\n' 'none'
end

function __tdbg_PRESET
    printf '%s\n' 'hierarchical	VALIDATION_METRICS, MODEL_BUILD, LOSS.TAXONOMY_SMOOTHING'
    printf '%s\n' 'distributed	DISTRIBUTED, OPTIMIZER, TRAINING_LOOP'
    printf '%s\n' 'data	DATALOADER, AUGMENTATION'
    printf '%s\n' 'schedule	SCHEDULING, CHECKPOINT, TRAINING_LOOP, VALIDATION_METRICS'
    printf '%s\n' 'gradnorm	LOSS.GRADNORM_METRICS, LOSS.VERBOSE_GRADNORM_LOGGING, WANDB_METRICS'
    printf '%s\n' 'numerics	AUTOGRAD_ANOMALY, GRADIENTS, FORWARD, BACKWARD, AMP'
    printf '%s\n' 'memory	MEMORY, LOSS.GRADNORM_MEMORY'
end

function __tdbg_SEVERITY
    printf '%s\n' 'never'
    printf '%s\n' 'info'
    printf '%s\n' 'warning'
    printf '%s\n' 'error'
    printf '%s\n' 'critical'
end

function __tdbg_CODE
    printf '%s\n' 'TD-A001	GradScaler skips many updates'
    printf '%s\n' 'TD-A002	GradScaler hides a real NaN or Inf'
    printf '%s\n' 'TD-A003	gradients underflow in fp16'
    printf '%s\n' 'TD-C001	debug flag rejected by the program'
    printf '%s\n' 'TD-C002	debug flag that was never read'
    printf '%s\n' 'TD-C003	nothing was instrumented'
    printf '%s\n' 'TD-C004	no forward pass was seen'
    printf '%s\n' 'TD-C005	a part of tdbg switched itself off'
    printf '%s\n' 'TD-C006	records thinned out or lost for want of disk space'
    printf '%s\n' 'TD-C007	tensors with another dtype or device than the model'
    printf '%s\n' 'TD-C008	parameters that cannot learn'
    printf '%s\n' 'TD-C009	bad initial weights, or shapes that do not fit'
    printf '%s\n' 'TD-C010	checkpoint not loaded'
    printf '%s\n' 'TD-C011	resumed run starts over'
    printf '%s\n' 'TD-C012	evaluation in train mode'
    printf '%s\n' 'TD-C013	gradients not reset'
    printf '%s\n' 'TD-C014	gradients thrown away'
    printf '%s\n' 'TD-C015	calls out of order'
    printf '%s\n' 'TD-C016	checkpoint not saved'
    printf '%s\n' 'TD-C017	wandb dropped values logged for an earlier step'
    printf '%s\n' 'TD-C018	a key makes no chart in wandb'
    printf '%s\n' 'TD-C019	wandb failed'
    printf '%s\n' 'TD-C020	capture incomplete'
    printf '%s\n' 'TD-C021	eval mode left on after evaluation'
    printf '%s\n' 'TD-C022	dropout in evaluation'
    printf '%s\n' 'TD-C023	softmax or sigmoid in the wrong place'
    printf '%s\n' 'TD-C024	loss over all pairs of predictions and targets'
    printf '%s\n' 'TD-C025	running averages that nothing updates, or that frozen layers still update'
    printf '%s\n' 'TD-C026	autocast that does not apply'
    printf '%s\n' 'TD-C027	embedding and output layer that no longer share a weight'
    printf '%s\n' 'TD-C028	resumed without the optimizer'
    printf '%s\n' 'TD-C029	samples of a batch are mixed'
    printf '%s\n' 'TD-C030	the model sees future tokens'
    printf '%s\n' 'TD-C031	a padding mask has no effect'
    printf '%s\n' 'TD-C032	an input has no effect'
    printf '%s\n' 'TD-D001	bad values in a batch'
    printf '%s\n' 'TD-D002	constant batches'
    printf '%s\n' 'TD-D003	repeated batches'
    printf '%s\n' 'TD-D004	labels out of range'
    printf '%s\n' 'TD-D005	data loader failed'
    printf '%s\n' 'TD-D006	the sampler\'s epoch is not set'
    printf '%s\n' 'TD-D007	a transform makes NaN'
    printf '%s\n' 'TD-D008	value range of a transform'
    printf '%s\n' 'TD-D009	a transform without effect'
    printf '%s\n' 'TD-D010	evaluation inputs are scaled differently'
    printf '%s\n' 'TD-D011	evaluation on training data'
    printf '%s\n' 'TD-D012	the same augmentation in every worker'
    printf '%s\n' 'TD-D013	samples in the order of their labels'
    printf '%s\n' 'TD-D014	unscaled byte inputs (0 to 255)'
    printf '%s\n' 'TD-D015	fewer rows in a batch than samples fetched'
    printf '%s\n' 'TD-G001	gradient explosion'
    printf '%s\n' 'TD-G002	vanishing gradients'
    printf '%s\n' 'TD-G003	parameters without a gradient'
    printf '%s\n' 'TD-G004	one parameter\'s gradient explodes'
    printf '%s\n' 'TD-G005	gradient vanishes on its way back'
    printf '%s\n' 'TD-G006	custom gradient is wrong'
    printf '%s\n' 'TD-L001	no null labels are seen although the data has them'
    printf '%s\n' 'TD-L002	the null index is wrong'
    printf '%s\n' 'TD-L003	one-hot targets are taken for class indices'
    printf '%s\n' 'TD-L004	everything is masked'
    printf '%s\n' 'TD-L005	the masking probability is not applied'
    printf '%s\n' 'TD-L006	masks are drawn in validation'
    printf '%s\n' 'TD-L007	smoothed targets do not sum to 1'
    printf '%s\n' 'TD-L008	smoothing moves the mass off the true class'
    printf '%s\n' 'TD-L009	invalid distance matrix'
    printf '%s\n' 'TD-L010	the label hierarchy is broken'
    printf '%s\n' 'TD-L011	class weights are extreme'
    printf '%s\n' 'TD-L012	rare classes weigh least'
    printf '%s\n' 'TD-L013	classes are weighted twice'
    printf '%s\n' 'TD-L014	a GradNorm weight collapsed'
    printf '%s\n' 'TD-L015	GradNorm weights are not renormalised'
    printf '%s\n' 'TD-L016	a GradNorm weight is negative'
    printf '%s\n' 'TD-L017	memory stays after each GradNorm update'
    printf '%s\n' 'TD-L018	no gradient reaches the shared layer'
    printf '%s\n' 'TD-L019	values of GradNorm are not finite'
    printf '%s\n' 'TD-L020	the class weights of a batch sum to 0'
    printf '%s\n' 'TD-L021	targets of the null class count in the loss'
    printf '%s\n' 'TD-L022	one batch cannot be overfitted'
    printf '%s\n' 'TD-M001	memory creep'
    printf '%s\n' 'TD-M002	out of memory'
    printf '%s\n' 'TD-M003	host memory nearly full'
    printf '%s\n' 'TD-N001	first NaN or Inf'
    printf '%s\n' 'TD-N002	dead run: the loss stays NaN or Inf'
    printf '%s\n' 'TD-N003	NaN or Inf in evaluation'
    printf '%s\n' 'TD-N004	loss jump'
    printf '%s\n' 'TD-N005	a module\'s output is zero'
    printf '%s\n' 'TD-P001	waits for the accelerator in the step'
    printf '%s\n' 'TD-P002	the step waits for data'
    printf '%s\n' 'TD-P003	evaluation with gradients on'
    printf '%s\n' 'TD-P004	profile incomplete'
    printf '%s\n' 'TD-P005	torch.compile gave up on a function'
    printf '%s\n' 'TD-P006	graph breaks of torch.compile'
    printf '%s\n' 'TD-P007	much of the time goes outside of training steps'
    printf '%s\n' 'TD-R001	ranks stopped at different steps'
    printf '%s\n' 'TD-R002	a rank exited with an error code or was killed by a signal'
    printf '%s\n' 'TD-R003	exception'
    printf '%s\n' 'TD-R004	fewer steps than planned'
    printf '%s\n' 'TD-R005	ranks out of step'
    printf '%s\n' 'TD-R006	job hangs: a rank keeps others waiting'
    printf '%s\n' 'TD-R007	a rank ended before others that needed it'
    printf '%s\n' 'TD-R008	replicas drift apart'
    printf '%s\n' 'TD-R009	ranks train on the same data'
    printf '%s\n' 'TD-R010	a slow rank keeps the others waiting'
    printf '%s\n' 'TD-R011	ranks draw the same random numbers for their data'
    printf '%s\n' 'TD-S001	learning-rate spike'
    printf '%s\n' 'TD-S002	learning rate zero or negative'
    printf '%s\n' 'TD-S003	scheduler steps before the optimizer'
    printf '%s\n' 'TD-S004	schedule without effect'
    printf '%s\n' 'TD-S005	schedule does not fit the run'
    printf '%s\n' 'TD-S006	parameters left out of the optimizer, or held twice'
    printf '%s\n' 'TD-S007	weights do not change'
    printf '%s\n' 'TD-S008	learning rate above 1 with Adam'
    printf '%s\n' 'TD-S009	early stopping does not follow its metric'
    printf '%s\n' 'TD-S010	parameter groups with a learning rate of zero'
    printf '%s\n' 'TD-S011	optimizer that updates nothing of the model'
    printf '%s\n' 'TD-S012	loss stays at chance level, or ends far above it'
end

function __tdbg_ADVICE
    printf '%s\n' 'TD-K001	a metric that never changes'
    printf '%s\n' 'TD-K002	a best value that is never updated'
    printf '%s\n' 'TD-K003	a metric finalised with count 0'
    printf '%s\n' 'TD-K004	one phase under two names'
    printf '%s\n' 'TD-K005	one metric in two units'
    printf '%s\n' 'TD-K006	rows with a stale epoch'
    printf '%s\n' 'TD-K007	steps that go backwards'
    printf '%s\n' 'TD-K008	keys outside the grammar'
    printf '%s\n' 'TD-K009	more epochs or steps than planned'
    printf '%s\n' 'TD-K010	an operation that is never due'
    printf '%s\n' 'TD-K011	a metric that is not finite'
    printf '%s\n' 'TD-K012	an evaluation score that stays near chance'
    printf '%s\n' 'TD-P101	waits for input'
    printf '%s\n' 'TD-P102	no DataLoader workers'
    printf '%s\n' 'TD-P103	copies to the device'
    printf '%s\n' 'TD-P104	idle accelerator'
    printf '%s\n' 'TD-P105	launch-bound'
    printf '%s\n' 'TD-P106	waits for the device'
    printf '%s\n' 'TD-P107	small kernels'
    printf '%s\n' 'TD-P108	no tensor cores'
    printf '%s\n' 'TD-P109	memory nearly full'
    printf '%s\n' 'TD-P110	fragmented memory'
    printf '%s\n' 'TD-P111	optimizer in a loop'
    printf '%s\n' 'TD-P112	gradients zeroed, not None'
    printf '%s\n' 'TD-P113	a step that stalls'
    printf '%s\n' 'TD-P114	communication not hidden'
    printf '%s\n' 'TD-P115	a slow rank'
    printf '%s\n' 'TD-P116	memory grows'
    printf '%s\n' 'TD-P117	TF32 is off'
end

function __tdbg_LOG_LEVEL
    printf '%s\n' 'DEBUG'
    printf '%s\n' 'STATS'
    printf '%s\n' 'INFO'
    printf '%s\n' 'WARNING'
    printf '%s\n' 'ERROR'
    printf '%s\n' 'CRITICAL'
end

function __tdbg_FAULT
    printf '%s\n' 'none'
    printf '%s\n' 'forward-inf'
    printf '%s\n' 'backward-nan'
    printf '%s\n' 'inf-grad'
    printf '%s\n' 'bad-batch'
    printf '%s\n' 'lr-spike'
end

function __tdbg_IMAGE
    printf '%s\n' 'auto'
    printf '%s\n' 'never'
    printf '%s\n' 'kitty'
    printf '%s\n' 'iterm'
    printf '%s\n' 'sixel'
end

function __tdbg_KIND
    printf '%s\n' 'light'
    printf '%s\n' 'memory'
    printf '%s\n' 'shapes'
    printf '%s\n' 'stacks'
    printf '%s\n' 'flops'
    printf '%s\n' 'full'
end

function __tdbg_SINK
    printf '%s\n' 'tensorboard'
    printf '%s\n' 'wandb'
end

function __tdbg_DEBUGGER
    printf '%s\n' 'activation-stats'
    printf '%s\n' 'attention'
    printf '%s\n' 'feature-map'
    printf '%s\n' 'gradcam'
    printf '%s\n' 'gradients'
    printf '%s\n' 'layer-output'
    printf '%s\n' 'inputs'
    printf '%s\n' 'labels'
    printf '%s\n' 'outputs'
end

function __tdbg_WHEN
    printf '%s\n' 'auto'
    printf '%s\n' 'always'
    printf '%s\n' 'never'
end


complete -c tdbg -f

# tdbg
complete -c tdbg -n '__tdbg_at \'\'' -a run -d 'Run a training or evaluation command and report what went wrong.'
complete -c tdbg -n '__tdbg_at \'\'' -a profile -d 'Run a command with torch.profiler around some of its steps.'
complete -c tdbg -n '__tdbg_at \'\'' -a report -d 'Show the verdict of a run: findings, evidence, cost.'
complete -c tdbg -n '__tdbg_at \'\'' -a runs -d 'List runs with their verdicts; copy them to a store; remove old ones.'
complete -c tdbg -n '__tdbg_at \'\'' -a join -d 'Join the run directories that several hosts wrote into one run.'
complete -c tdbg -n '__tdbg_at \'\'' -a status -d 'Show how far a run is: rank, step, rate, loss, level, last finding.'
complete -c tdbg -n '__tdbg_at \'\'' -a control -d 'Change level and flags of a live run, on all ranks at one step.'
complete -c tdbg -n '__tdbg_at \'\'' -a view -d 'Show runs in the browser, and serve them as an HTTP API on 127.0.0.1.'
complete -c tdbg -n '__tdbg_at \'\'' -a stacks -d 'Print all ranks\' Python stacks as one tree: now, or at the last hang.'
complete -c tdbg -n '__tdbg_at \'\'' -a filter-logs -d 'Print log lines by flag, rank, level, step and time; whole records.'
complete -c tdbg -n '__tdbg_at \'\'' -a inspect-pages -d 'Open captured tensors: list, show, compare, export, repair.'
complete -c tdbg -n '__tdbg_at \'\'' -a trace -d 'Read traces of torch.profiler: where time and memory went.'
complete -c tdbg -n '__tdbg_at \'\'' -a metrics -d 'Show, plot, compare and check the losses, rates and scores of a run.'
complete -c tdbg -n '__tdbg_at \'\'' -a flags -d 'List the debug flags, what they open and what they did.'
complete -c tdbg -n '__tdbg_at \'\'' -a explain -d 'Explain the code of a finding or of advice, and what to do.'
complete -c tdbg -n '__tdbg_at \'\'' -a doctor -d 'Show what tdbg sees here: versions, settings and their sources.'
complete -c tdbg -n '__tdbg_at \'\'' -a demo -d 'Train a small model under tdbg, optionally with a fault.'
complete -c tdbg -n '__tdbg_at \'\'' -a hook -d 'Install or remove the hook for Pythons that ignore PYTHONPATH.'
complete -c tdbg -n '__tdbg_at \'\'' -a completions -d 'Install or remove the completions of commands, options and runs.'
complete -c tdbg -n '__tdbg_at \'\'' -a trust -d 'Allow a folder\'s configuration to run, send and load things.'
complete -c tdbg -n '__tdbg_at \'\'' -l version -d 'Print the version and exit.'
complete -c tdbg -n '__tdbg_at \'\'' -s h -l help -d 'Show this page and exit.'

# tdbg run
complete -c tdbg -n '__tdbg_at \'run\'' -s f -l flag -x -a '(__tdbg_FLAG)' -d 'Switch a debug flag on: FLAG or FLAG=VALUE; repeatable.'
complete -c tdbg -n '__tdbg_at \'run\'' -l no-flag -x -a '(__tdbg_FLAG)' -d 'Switch a debug flag off that another source switches on.'
complete -c tdbg -n '__tdbg_at \'run\'' -l preset -x -a '(__tdbg_PRESET)' -d 'Switch on flags often wanted together.'
complete -c tdbg -n '__tdbg_at \'run\'' -l threshold -x -d 'A threshold of a probe: GRADIENTS.explosion=50; repeatable.'
complete -c tdbg -n '__tdbg_at \'run\'' -l strict-flags -d 'A flag the program rejects ends the rank before its first step.'
complete -c tdbg -n '__tdbg_at \'run\'' -l forbid-flags -d 'Refuse to start while a debug flag is on, in tdbg\'s settings or in the program\'s own configuration.'
complete -c tdbg -n '__tdbg_at \'run\'' -l inject -x -a '(__tdbg_MODE)' -d 'How flags reach the program\'s own configuration.'
complete -c tdbg -n '__tdbg_at \'run\'' -l step-optimizer -x -d 'Count steps of this optimizer class instead of the first.'
complete -c tdbg -n '__tdbg_at \'run\'' -s l -l level -x -a '(__tdbg_LEVEL)' -d 'off, basic, advanced or extreme: how much is recorded (default basic).'
complete -c tdbg -n '__tdbg_at \'run\'' -l max-overhead -x -d 'Share of the wall time tdbg may cost, in percent.'
complete -c tdbg -n '__tdbg_at \'run\'' -l allowance -x -d 'Seconds that tdbg may spend on inspecting the first steps fully, outside the budget (default 1).'
complete -c tdbg -n '__tdbg_at \'run\'' -l measure-overhead -x -d 'Alternate blocks of N steps without and with tdbg, and compare.'
complete -c tdbg -n '__tdbg_at \'run\'' -l every -x -d 'Flags and levels look at every Nth step only.'
complete -c tdbg -n '__tdbg_at \'run\'' -l steps -x -d 'Flags and levels look at these steps only: 100:200,500.'
complete -c tdbg -n '__tdbg_at \'run\'' -l ranks -x -d 'Flags and levels look on these ranks only: 0,3-5.'
complete -c tdbg -n '__tdbg_at \'run\'' -l keep-steps -x -d 'Step records kept for the report of a bad step.'
complete -c tdbg -n '__tdbg_at \'run\'' -l capture -x -d 'Capture tensors of layers (\'layers.*.attn:output,input,grad\'), batch or prediction; repeatable.'
complete -c tdbg -n '__tdbg_at \'run\'' -l debugger -x -a '(__tdbg_DEBUGGER)' -d 'Run a debugger on captured datapoints: gradcam:layer4, \'attention:layers.*\'; repeatable.'
complete -c tdbg -n '__tdbg_at \'run\'' -l capture-stats -d 'Keep statistics of captured tensors, not the tensors.'
complete -c tdbg -n '__tdbg_at \'run\'' -l capture-every -x -d 'Capture every Nth step.'
complete -c tdbg -n '__tdbg_at \'run\'' -l capture-steps -x -d 'Capture these steps only: 100:200,500.'
complete -c tdbg -n '__tdbg_at \'run\'' -l capture-epochs -x -d 'Epochs to capture: N (each Nth and the last), latest, all.'
complete -c tdbg -n '__tdbg_at \'run\'' -l capture-phase -x -d 'Capture in this phase only: train, val or eval; repeatable.'
complete -c tdbg -n '__tdbg_at \'run\'' -l capture-samples -x -d 'Keep only some samples of a batch: worst, worst:4 (largest loss), wrong, or N (every Nth).'
complete -c tdbg -n '__tdbg_at \'run\'' -l capture-on -x -a '(__tdbg_CODE) (__tdbg_SEVERITY)' -d 'Capture 20 steps after each such finding, and only then; repeatable.'
complete -c tdbg -n '__tdbg_at \'run\'' -l capture-budget -x -d 'Bytes that a rank may capture, such as 2GB.'
complete -c tdbg -n '__tdbg_at \'run\'' -l capture-policy -x -d 'What to do when the disk is too slow: block, drop or sample.'
complete -c tdbg -n '__tdbg_at \'run\'' -l capture-upload -x -d 'Copy sealed pages below this URL while the run goes on: s3://bucket/runs.'
complete -c tdbg -n '__tdbg_at \'run\'' -l stop-on -x -a '(__tdbg_CODE) (__tdbg_SEVERITY)' -d 'End the command at the first such finding; repeatable.'
complete -c tdbg -n '__tdbg_at \'run\'' -l stack-signal -x -d 'Signal that `tdbg stacks` sends to ranks; none turns it off.'
complete -c tdbg -n '__tdbg_at \'run\'' -l stop-before-update -d 'Stop before the optimizer uses a non-finite gradient; looks before each update, whatever that costs (syncs a GPU).'
complete -c tdbg -n '__tdbg_at \'run\'' -l fail-on -x -a '(__tdbg_SEVERITY)' -d 'Exit with 1 instead of 0 after a finding of this severity or worse.'
complete -c tdbg -n '__tdbg_at \'run\'' -l on-finding -x -d 'Run a command once for each finding, with the finding as JSON on its stdin.'
complete -c tdbg -n '__tdbg_at \'run\'' -l notify -x -d 'Send each finding and the verdict to this URL, of Slack or any webhook.'
complete -c tdbg -n '__tdbg_at \'run\'' -l to -x -a '(__tdbg_SINK)' -d 'Send step records, findings and the report to wandb, tensorboard or a sink of another package; repeatable.'
complete -c tdbg -n '__tdbg_at \'run\'' -l when -x -d 'A condition on step records, such as \'loss > 10 or skipped\'.'
complete -c tdbg -n '__tdbg_at \'run\'' -l then -x -d 'What to do when --when becomes true: \'level=extreme for 20\', \'dump\'.'
complete -c tdbg -n '__tdbg_at \'run\'' -l run-dir -x -a '(__fish_complete_directories)' -d 'Where the run is kept; must not hold another run. Below a URL (s3://bucket/run) it is copied while the run goes on.'
complete -c tdbg -n '__tdbg_at \'run\'' -l name -x -d 'Name of the run under ./tdbg_runs.'
complete -c tdbg -n '__tdbg_at \'run\'' -l share -d 'Let other users of this machine read the run directory.'
complete -c tdbg -n '__tdbg_at \'run\'' -l tee -d 'Keep a copy of stdout and stderr in the run directory, byte for byte.'
complete -c tdbg -n '__tdbg_at \'run\'' -l disk-budget -x -d 'Bytes that a rank may write, such as 500MB.'
complete -c tdbg -n '__tdbg_at \'run\'' -l profile-name -x -d 'Use the settings [tool.tdbg.profiles.NAME].'
complete -c tdbg -n '__tdbg_at \'run\'' -l log-level -x -a '(__tdbg_LOG_LEVEL)' -d 'Level of the program\'s own console log.'
complete -c tdbg -n '__tdbg_at \'run\'' -l progress-every -x -d 'Time between progress lines; with --tee, a terminal has one live line.'
complete -c tdbg -n '__tdbg_at \'run\'' -l serve -x -d 'Serve the viewer on 127.0.0.1 while the run goes on; default: any free port.'
complete -c tdbg -n '__tdbg_at \'run\'' -l preflight -d 'Test the model on the first batch, then end before the first update; files that the program writes are discarded.'
complete -c tdbg -n '__tdbg_at \'run\'' -l dry-run -d 'Print what would be done, and do nothing.'
complete -c tdbg -n '__tdbg_at \'run\'' -l exec -d 'Replace the tdbg process with the command: no live findings, no verdict.'
complete -c tdbg -n '__tdbg_at \'run\'' -s q -l quiet -d 'Print only errors, and one line at the end.'
complete -c tdbg -n '__tdbg_at \'run\'' -l color -x -a '(__tdbg_WHEN)' -d 'Colour the output: auto, always or never; always formats a pipe like a terminal. [default: auto]'
complete -c tdbg -n '__tdbg_at \'run\'' -s h -l help -d 'Show this page and exit.'
complete -c tdbg -n '__tdbg_at \'run\'' -a '(__tdbg_wrapped)'
complete -c tdbg -n '__tdbg_at \'run --\'' -a '(__tdbg_wrapped)'

# tdbg profile
complete -c tdbg -n '__tdbg_at \'profile\'' -s k -l kind -x -a '(__tdbg_KIND)' -d 'What is recorded: light, memory, shapes, stacks, flops, full.'
complete -c tdbg -n '__tdbg_at \'profile\'' -l wait -x -d 'Steps before each window; 1 if left out.'
complete -c tdbg -n '__tdbg_at \'profile\'' -l warmup -x -d 'Warm-up steps after --wait; 1 if left out.'
complete -c tdbg -n '__tdbg_at \'profile\'' -l active -x -d 'Steps that are recorded; 3 if left out.'
complete -c tdbg -n '__tdbg_at \'profile\'' -l repeat -x -d 'How many windows; 1 if left out, 0: until the end.'
complete -c tdbg -n '__tdbg_at \'profile\'' -l skip-first -x -d 'Steps before the first wait.'
complete -c tdbg -n '__tdbg_at \'profile\'' -l window -x -d 'Record these steps instead: 100:102,500:502.'
complete -c tdbg -n '__tdbg_at \'profile\'' -l window-on -x -a '(__tdbg_CODE) (__tdbg_SEVERITY)' -d 'Record a window after each such finding only; repeatable.'
complete -c tdbg -n '__tdbg_at \'profile\'' -s f -l flag -x -a '(__tdbg_FLAG)' -d 'Switch a debug flag on: FLAG or FLAG=VALUE; repeatable.'
complete -c tdbg -n '__tdbg_at \'profile\'' -l no-flag -x -a '(__tdbg_FLAG)' -d 'Switch a debug flag off that another source switches on.'
complete -c tdbg -n '__tdbg_at \'profile\'' -l preset -x -a '(__tdbg_PRESET)' -d 'Switch on flags often wanted together.'
complete -c tdbg -n '__tdbg_at \'profile\'' -l threshold -x -d 'A threshold of a probe: GRADIENTS.explosion=50; repeatable.'
complete -c tdbg -n '__tdbg_at \'profile\'' -l strict-flags -d 'A flag the program rejects ends the rank before its first step.'
complete -c tdbg -n '__tdbg_at \'profile\'' -l forbid-flags -d 'Refuse to start while a debug flag is on, in tdbg\'s settings or in the program\'s own configuration.'
complete -c tdbg -n '__tdbg_at \'profile\'' -l inject -x -a '(__tdbg_MODE)' -d 'How flags reach the program\'s own configuration.'
complete -c tdbg -n '__tdbg_at \'profile\'' -l step-optimizer -x -d 'Count steps of this optimizer class instead of the first.'
complete -c tdbg -n '__tdbg_at \'profile\'' -s l -l level -x -a '(__tdbg_LEVEL)' -d 'off, basic, advanced or extreme: how much is recorded (default basic).'
complete -c tdbg -n '__tdbg_at \'profile\'' -l max-overhead -x -d 'Share of the wall time tdbg may cost, in percent.'
complete -c tdbg -n '__tdbg_at \'profile\'' -l allowance -x -d 'Seconds that tdbg may spend on inspecting the first steps fully, outside the budget (default 1).'
complete -c tdbg -n '__tdbg_at \'profile\'' -l measure-overhead -x -d 'Alternate blocks of N steps without and with tdbg, and compare.'
complete -c tdbg -n '__tdbg_at \'profile\'' -l every -x -d 'Flags and levels look at every Nth step only.'
complete -c tdbg -n '__tdbg_at \'profile\'' -l steps -x -d 'Flags and levels look at these steps only: 100:200,500.'
complete -c tdbg -n '__tdbg_at \'profile\'' -l ranks -x -d 'Flags and levels look on these ranks only: 0,3-5.'
complete -c tdbg -n '__tdbg_at \'profile\'' -l keep-steps -x -d 'Step records kept for the report of a bad step.'
complete -c tdbg -n '__tdbg_at \'profile\'' -l capture -x -d 'Capture tensors of layers (\'layers.*.attn:output,input,grad\'), batch or prediction; repeatable.'
complete -c tdbg -n '__tdbg_at \'profile\'' -l debugger -x -a '(__tdbg_DEBUGGER)' -d 'Run a debugger on captured datapoints: gradcam:layer4, \'attention:layers.*\'; repeatable.'
complete -c tdbg -n '__tdbg_at \'profile\'' -l capture-stats -d 'Keep statistics of captured tensors, not the tensors.'
complete -c tdbg -n '__tdbg_at \'profile\'' -l capture-every -x -d 'Capture every Nth step.'
complete -c tdbg -n '__tdbg_at \'profile\'' -l capture-steps -x -d 'Capture these steps only: 100:200,500.'
complete -c tdbg -n '__tdbg_at \'profile\'' -l capture-epochs -x -d 'Epochs to capture: N (each Nth and the last), latest, all.'
complete -c tdbg -n '__tdbg_at \'profile\'' -l capture-phase -x -d 'Capture in this phase only: train, val or eval; repeatable.'
complete -c tdbg -n '__tdbg_at \'profile\'' -l capture-samples -x -d 'Keep only some samples of a batch: worst, worst:4 (largest loss), wrong, or N (every Nth).'
complete -c tdbg -n '__tdbg_at \'profile\'' -l capture-on -x -a '(__tdbg_CODE) (__tdbg_SEVERITY)' -d 'Capture 20 steps after each such finding, and only then; repeatable.'
complete -c tdbg -n '__tdbg_at \'profile\'' -l capture-budget -x -d 'Bytes that a rank may capture, such as 2GB.'
complete -c tdbg -n '__tdbg_at \'profile\'' -l capture-policy -x -d 'What to do when the disk is too slow: block, drop or sample.'
complete -c tdbg -n '__tdbg_at \'profile\'' -l capture-upload -x -d 'Copy sealed pages below this URL while the run goes on: s3://bucket/runs.'
complete -c tdbg -n '__tdbg_at \'profile\'' -l stop-on -x -a '(__tdbg_CODE) (__tdbg_SEVERITY)' -d 'End the command at the first such finding; repeatable.'
complete -c tdbg -n '__tdbg_at \'profile\'' -l stack-signal -x -d 'Signal that `tdbg stacks` sends to ranks; none turns it off.'
complete -c tdbg -n '__tdbg_at \'profile\'' -l stop-before-update -d 'Stop before the optimizer uses a non-finite gradient; looks before each update, whatever that costs (syncs a GPU).'
complete -c tdbg -n '__tdbg_at \'profile\'' -l fail-on -x -a '(__tdbg_SEVERITY)' -d 'Exit with 1 instead of 0 after a finding of this severity or worse.'
complete -c tdbg -n '__tdbg_at \'profile\'' -l on-finding -x -d 'Run a command once for each finding, with the finding as JSON on its stdin.'
complete -c tdbg -n '__tdbg_at \'profile\'' -l notify -x -d 'Send each finding and the verdict to this URL, of Slack or any webhook.'
complete -c tdbg -n '__tdbg_at \'profile\'' -l to -x -a '(__tdbg_SINK)' -d 'Send step records, findings and the report to wandb, tensorboard or a sink of another package; repeatable.'
complete -c tdbg -n '__tdbg_at \'profile\'' -l when -x -d 'A condition on step records, such as \'loss > 10 or skipped\'.'
complete -c tdbg -n '__tdbg_at \'profile\'' -l then -x -d 'What to do when --when becomes true: \'level=extreme for 20\', \'dump\'.'
complete -c tdbg -n '__tdbg_at \'profile\'' -l run-dir -x -a '(__fish_complete_directories)' -d 'Where the run is kept; must not hold another run. Below a URL (s3://bucket/run) it is copied while the run goes on.'
complete -c tdbg -n '__tdbg_at \'profile\'' -l name -x -d 'Name of the run under ./tdbg_runs.'
complete -c tdbg -n '__tdbg_at \'profile\'' -l share -d 'Let other users of this machine read the run directory.'
complete -c tdbg -n '__tdbg_at \'profile\'' -l tee -d 'Keep a copy of stdout and stderr in the run directory, byte for byte.'
complete -c tdbg -n '__tdbg_at \'profile\'' -l disk-budget -x -d 'Bytes that a rank may write, such as 500MB.'
complete -c tdbg -n '__tdbg_at \'profile\'' -l profile-name -x -d 'Use the settings [tool.tdbg.profiles.NAME].'
complete -c tdbg -n '__tdbg_at \'profile\'' -l log-level -x -a '(__tdbg_LOG_LEVEL)' -d 'Level of the program\'s own console log.'
complete -c tdbg -n '__tdbg_at \'profile\'' -l progress-every -x -d 'Time between progress lines; with --tee, a terminal has one live line.'
complete -c tdbg -n '__tdbg_at \'profile\'' -l serve -x -d 'Serve the viewer on 127.0.0.1 while the run goes on; default: any free port.'
complete -c tdbg -n '__tdbg_at \'profile\'' -l dry-run -d 'Print what would be done, and do nothing.'
complete -c tdbg -n '__tdbg_at \'profile\'' -l exec -d 'Replace the tdbg process with the command: no live findings, no verdict.'
complete -c tdbg -n '__tdbg_at \'profile\'' -s q -l quiet -d 'Print only errors, and one line at the end.'
complete -c tdbg -n '__tdbg_at \'profile\'' -l color -x -a '(__tdbg_WHEN)' -d 'Colour the output: auto, always or never; always formats a pipe like a terminal. [default: auto]'
complete -c tdbg -n '__tdbg_at \'profile\'' -s h -l help -d 'Show this page and exit.'
complete -c tdbg -n '__tdbg_at \'profile\'' -a '(__tdbg_wrapped)'
complete -c tdbg -n '__tdbg_at \'profile --\'' -a '(__tdbg_wrapped)'

# tdbg report
complete -c tdbg -n '__tdbg_at \'report\'' -l all -d 'Print everything, not just one screen.'
complete -c tdbg -n '__tdbg_at \'report\'' -l markdown -d 'Print it as Markdown, for an issue tracker.'
complete -c tdbg -n '__tdbg_at \'report\'' -l note -x -d 'Keep your own finding with the run.'
complete -c tdbg -n '__tdbg_at \'report\'' -l fail-on -x -a '(__tdbg_SEVERITY)' -d 'Exit with 1 if there is a finding of this severity or worse. [default: never]'
complete -c tdbg -n '__tdbg_at \'report\'' -l html -r -F -d 'Write it as one HTML file, with charts, that opens without a network.'
complete -c tdbg -n '__tdbg_at \'report\'' -l force -d 'With --html: overwrite a file that is there.'
complete -c tdbg -n '__tdbg_at \'report\'' -l to -x -a '(__tdbg_SINK)' -d 'Send step records, findings and the report to wandb, tensorboard or a sink of another package; repeatable.'
complete -c tdbg -n '__tdbg_at \'report\'' -l json -d 'Print one JSON document.'
complete -c tdbg -n '__tdbg_at \'report\'' -l color -x -a '(__tdbg_WHEN)' -d 'Colour the output: auto, always or never; always formats a pipe like a terminal. [default: auto]'
complete -c tdbg -n '__tdbg_at \'report\'' -s h -l help -d 'Show this page and exit.'
complete -c tdbg -n '__tdbg_at \'report\'' -a '(__tdbg_runs)'

# tdbg runs
complete -c tdbg -n '__tdbg_at \'runs\'' -a ls -d 'List the runs of a folder, the newest first: state, verdict, duration, last loss.'
complete -c tdbg -n '__tdbg_at \'runs\'' -a upload -d 'Copy a run that is over to a store that a URL names.'
complete -c tdbg -n '__tdbg_at \'runs\'' -a prune -d 'Remove old runs, after asking.'
complete -c tdbg -n '__tdbg_at \'runs\'' -s h -l help -d 'Show this page and exit.'

# tdbg runs ls
complete -c tdbg -n '__tdbg_at \'runs ls\'' -l limit -x -d 'Show at most N runs; 0 shows all. [default: 20]'
complete -c tdbg -n '__tdbg_at \'runs ls\'' -l json -d 'Print one JSON document.'
complete -c tdbg -n '__tdbg_at \'runs ls\'' -l color -x -a '(__tdbg_WHEN)' -d 'Colour the output: auto, always or never; always formats a pipe like a terminal. [default: auto]'
complete -c tdbg -n '__tdbg_at \'runs ls\'' -s h -l help -d 'Show this page and exit.'
complete -c tdbg -n '__tdbg_at \'runs ls\'' -a '(__fish_complete_directories)'

# tdbg runs upload
complete -c tdbg -n '__tdbg_at \'runs upload\'' -l color -x -a '(__tdbg_WHEN)' -d 'Colour the output: auto, always or never; always formats a pipe like a terminal. [default: auto]'
complete -c tdbg -n '__tdbg_at \'runs upload\'' -s h -l help -d 'Show this page and exit.'
complete -c tdbg -n '__tdbg_at \'runs upload\'' -a '(__tdbg_runs)'

# tdbg runs prune
complete -c tdbg -n '__tdbg_at \'runs prune\'' -l keep -x -d 'Keep the N newest runs.'
complete -c tdbg -n '__tdbg_at \'runs prune\'' -l older -x -d 'Only runs that ended longer ago than this: 12h, 30d, 8w.'
complete -c tdbg -n '__tdbg_at \'runs prune\'' -l dry-run -d 'Print what would go, and remove nothing.'
complete -c tdbg -n '__tdbg_at \'runs prune\'' -l yes -d 'Do not ask.'
complete -c tdbg -n '__tdbg_at \'runs prune\'' -l color -x -a '(__tdbg_WHEN)' -d 'Colour the output: auto, always or never; always formats a pipe like a terminal. [default: auto]'
complete -c tdbg -n '__tdbg_at \'runs prune\'' -s h -l help -d 'Show this page and exit.'
complete -c tdbg -n '__tdbg_at \'runs prune\'' -a '(__fish_complete_directories)'

# tdbg join
complete -c tdbg -n '__tdbg_at \'join\'' -s o -l output -x -a '(__fish_complete_directories)' -d 'The run directory to write; it must not exist.'
complete -c tdbg -n '__tdbg_at \'join\'' -l color -x -a '(__tdbg_WHEN)' -d 'Colour the output: auto, always or never; always formats a pipe like a terminal. [default: auto]'
complete -c tdbg -n '__tdbg_at \'join\'' -s h -l help -d 'Show this page and exit.'
complete -c tdbg -n '__tdbg_at \'join\'' -a '(__fish_complete_directories)'

# tdbg status
complete -c tdbg -n '__tdbg_at \'status\'' -l watch -d 'Look again every 2 s, until the run ends.'
complete -c tdbg -n '__tdbg_at \'status\'' -l json -d 'Print one JSON document.'
complete -c tdbg -n '__tdbg_at \'status\'' -l color -x -a '(__tdbg_WHEN)' -d 'Colour the output: auto, always or never; always formats a pipe like a terminal. [default: auto]'
complete -c tdbg -n '__tdbg_at \'status\'' -s h -l help -d 'Show this page and exit.'
complete -c tdbg -n '__tdbg_at \'status\'' -a '(__tdbg_runs)'

# tdbg control
complete -c tdbg -n '__tdbg_at \'control\'' -s l -l level -x -a '(__tdbg_LEVEL)' -d 'off, basic, advanced or extreme: how much is recorded from then on.'
complete -c tdbg -n '__tdbg_at \'control\'' -s f -l flag -x -a '(__tdbg_FLAG)' -d 'Switch a debug flag on; repeatable.'
complete -c tdbg -n '__tdbg_at \'control\'' -l no-flag -x -a '(__tdbg_FLAG)' -d 'Switch a debug flag off; repeatable.'
complete -c tdbg -n '__tdbg_at \'control\'' -l for -x -d 'Go back to what was before after N steps.'
complete -c tdbg -n '__tdbg_at \'control\'' -l at-step -x -d 'The first step the change holds for.'
complete -c tdbg -n '__tdbg_at \'control\'' -l profile -x -d 'Record N steps with torch.profiler, after a warm-up.'
complete -c tdbg -n '__tdbg_at \'control\'' -l clear-history -d 'Clear the last steps that each rank keeps for reports.'
complete -c tdbg -n '__tdbg_at \'control\'' -l timeout -x -d 'How long to wait for the ranks; 0: not at all.'
complete -c tdbg -n '__tdbg_at \'control\'' -l json -d 'Print one JSON document.'
complete -c tdbg -n '__tdbg_at \'control\'' -l color -x -a '(__tdbg_WHEN)' -d 'Colour the output: auto, always or never; always formats a pipe like a terminal. [default: auto]'
complete -c tdbg -n '__tdbg_at \'control\'' -s h -l help -d 'Show this page and exit.'
complete -c tdbg -n '__tdbg_at \'control\'' -a '(__tdbg_runs)'

# tdbg view
complete -c tdbg -n '__tdbg_at \'view\'' -l port -x -d 'The port to listen on; 0: any free one. [default: 0]'
complete -c tdbg -n '__tdbg_at \'view\'' -l open -d 'Open the address in a browser.'
complete -c tdbg -n '__tdbg_at \'view\'' -l routes -d 'Print the addresses of the HTTP API, and end.'
complete -c tdbg -n '__tdbg_at \'view\'' -l control -d 'Allow the pages to change level and flags of a live run.'
complete -c tdbg -n '__tdbg_at \'view\'' -s h -l help -d 'Show this page and exit.'
complete -c tdbg -n '__tdbg_at \'view\'' -a '(__tdbg_runs)'

# tdbg stacks
complete -c tdbg -n '__tdbg_at \'stacks\'' -l all -d 'Show the other threads as well.'
complete -c tdbg -n '__tdbg_at \'stacks\'' -l json -d 'Print one JSON document.'
complete -c tdbg -n '__tdbg_at \'stacks\'' -l color -x -a '(__tdbg_WHEN)' -d 'Colour the output: auto, always or never; always formats a pipe like a terminal. [default: auto]'
complete -c tdbg -n '__tdbg_at \'stacks\'' -s h -l help -d 'Show this page and exit.'
complete -c tdbg -n '__tdbg_at \'stacks\'' -a '(__tdbg_runs)'

# tdbg filter-logs
complete -c tdbg -n '__tdbg_at \'filter-logs\'' -s f -l flag -x -a '(__tdbg_FLAG)' -d 'Records of this flag and of those below it; repeat for more flags.'
complete -c tdbg -n '__tdbg_at \'filter-logs\'' -s x -l exclude-flag -x -a '(__tdbg_FLAG)' -d 'Leave out records of this flag; repeat to leave out more.'
complete -c tdbg -n '__tdbg_at \'filter-logs\'' -s p -l prefix -x -d 'Records whose tag starts with PREFIX; repeat for more prefixes.'
complete -c tdbg -n '__tdbg_at \'filter-logs\'' -s r -l ranks -x -d 'These ranks only: 0,3-5, or all. [default: all]'
complete -c tdbg -n '__tdbg_at \'filter-logs\'' -s t -l type -x -d 'Which of tdbg\'s two logs of a rank: debug, info or both. [default: debug]'
complete -c tdbg -n '__tdbg_at \'filter-logs\'' -l log-level -x -a '(__tdbg_LOG_LEVEL)' -d 'This level and above: DEBUG, STATS, INFO ...'
complete -c tdbg -n '__tdbg_at \'filter-logs\'' -l steps -x -d 'These steps only: 100:200,500.'
complete -c tdbg -n '__tdbg_at \'filter-logs\'' -l since -x -d 'From this time on, as the log writes it, or its beginning: 2026-11-21T03.'
complete -c tdbg -n '__tdbg_at \'filter-logs\'' -l until -x -d 'Up to this time.'
complete -c tdbg -n '__tdbg_at \'filter-logs\'' -s e -l regex -x -d 'Only records that match this regular expression.'
complete -c tdbg -n '__tdbg_at \'filter-logs\'' -s v -l invert-match -d 'Only records that do not match.'
complete -c tdbg -n '__tdbg_at \'filter-logs\'' -l map -r -F -d 'How this program spells its flags, from `tdbg flags scan`.'
complete -c tdbg -n '__tdbg_at \'filter-logs\'' -s A -l after-context -x -d 'Print N records after each match. [default: 0]'
complete -c tdbg -n '__tdbg_at \'filter-logs\'' -s B -l before-context -x -d 'Print N records before each match. [default: 0]'
complete -c tdbg -n '__tdbg_at \'filter-logs\'' -s C -l context -x -d 'Print N records before and after each match. [default: 0]'
complete -c tdbg -n '__tdbg_at \'filter-logs\'' -l merge -d 'One stream of all logs, by time, each line with its rank.'
complete -c tdbg -n '__tdbg_at \'filter-logs\'' -s F -l follow -d 'Keep reading as the logs grow or rotate and as new ranks start.'
complete -c tdbg -n '__tdbg_at \'filter-logs\'' -l collapse -d 'Print lines that several ranks share once: [r0-63].'
complete -c tdbg -n '__tdbg_at \'filter-logs\'' -l diverge -d 'Print only what some ranks write and others do not; names the first such step.'
complete -c tdbg -n '__tdbg_at \'filter-logs\'' -l silent -d 'Print the last record of each rank, and which rank went quiet first.'
complete -c tdbg -n '__tdbg_at \'filter-logs\'' -l errors -d 'Print the first error of each rank, causes before consequences.'
complete -c tdbg -n '__tdbg_at \'filter-logs\'' -l count -d 'Print only the number of records.'
complete -c tdbg -n '__tdbg_at \'filter-logs\'' -l stats -d 'Print the number of records and bytes by tag, rank and level.'
complete -c tdbg -n '__tdbg_at \'filter-logs\'' -l list-prefixes -d 'List the tags, and the flag that owns each.'
complete -c tdbg -n '__tdbg_at \'filter-logs\'' -s o -l output -r -F -d 'Write there instead of to stdout (-). [default: -]'
complete -c tdbg -n '__tdbg_at \'filter-logs\'' -l format -x -d 'text, as it was read, or jsonl: one JSON object a record. [default: text]'
complete -c tdbg -n '__tdbg_at \'filter-logs\'' -l log-format -x -d 'Format of the log lines, if it cannot be detected from the first ones.'
complete -c tdbg -n '__tdbg_at \'filter-logs\'' -l jobs -x -d 'Worker processes; 0: one a CPU. [default: 0]'
complete -c tdbg -n '__tdbg_at \'filter-logs\'' -l color -x -a '(__tdbg_WHEN)' -d 'Colour the output: auto, always or never; always formats a pipe like a terminal. [default: auto]'
complete -c tdbg -n '__tdbg_at \'filter-logs\'' -s h -l help -d 'Show this page and exit.'
complete -c tdbg -n '__tdbg_at \'filter-logs\'' -r -F

# tdbg inspect-pages
complete -c tdbg -n '__tdbg_at \'inspect-pages\'' -a ls -d 'List what was captured: layers, shapes, datapoints, bytes.'
complete -c tdbg -n '__tdbg_at \'inspect-pages\'' -a show -d 'Show the tensors of a datapoint: figures, histogram, picture, values.'
complete -c tdbg -n '__tdbg_at \'inspect-pages\'' -a stats -d 'Figures of each layer over all datapoints: mean, spread, zeros, quantiles.'
complete -c tdbg -n '__tdbg_at \'inspect-pages\'' -a find -d 'Find tensors by their figures: nan > 0 or absmax > 1e4.'
complete -c tdbg -n '__tdbg_at \'inspect-pages\'' -a diff -d 'Compare two runs, epochs or ranks: the first tensor that differs, and the worst ones.'
complete -c tdbg -n '__tdbg_at \'inspect-pages\'' -a export -d 'Write tensors as csv, npy, npz, png or safetensors.'
complete -c tdbg -n '__tdbg_at \'inspect-pages\'' -a html -d 'Write captured tensors as one HTML file that opens without a server and loads nothing.'
complete -c tdbg -n '__tdbg_at \'inspect-pages\'' -a verify -d 'Say whether what was captured is whole.'
complete -c tdbg -n '__tdbg_at \'inspect-pages\'' -a recover -d 'Seal the pages that a killed process left, and rebuild lost journals.'
complete -c tdbg -n '__tdbg_at \'inspect-pages\'' -a convert -d 'Make pages of tdbg out of page_N.pkl files that other tools wrote with joblib or pickle.'
complete -c tdbg -n '__tdbg_at \'inspect-pages\'' -a upload -d 'Copy what was captured to a store that a URL names.'
complete -c tdbg -n '__tdbg_at \'inspect-pages\'' -s h -l help -d 'Show this page and exit.'

# tdbg inspect-pages ls
complete -c tdbg -n '__tdbg_at \'inspect-pages ls\'' -l datapoints -d 'One line per datapoint instead of per layer.'
complete -c tdbg -n '__tdbg_at \'inspect-pages ls\'' -l ranks -l rank -x -d 'Only these ranks, such as 0,3-5.'
complete -c tdbg -n '__tdbg_at \'inspect-pages ls\'' -l steps -l step -x -d 'Only these steps, such as 100:200,500.'
complete -c tdbg -n '__tdbg_at \'inspect-pages ls\'' -l epochs -l epoch -x -d 'Only these epochs, such as 0:2.'
complete -c tdbg -n '__tdbg_at \'inspect-pages ls\'' -l phase -x -d 'Only this phase, such as train or eval.'
complete -c tdbg -n '__tdbg_at \'inspect-pages ls\'' -l json -d 'Print one JSON document.'
complete -c tdbg -n '__tdbg_at \'inspect-pages ls\'' -l color -x -a '(__tdbg_WHEN)' -d 'Colour the output: auto, always or never; always formats a pipe like a terminal. [default: auto]'
complete -c tdbg -n '__tdbg_at \'inspect-pages ls\'' -s h -l help -d 'Show this page and exit.'
complete -c tdbg -n '__tdbg_at \'inspect-pages ls\'' -r -F

# tdbg inspect-pages show
complete -c tdbg -n '__tdbg_at \'inspect-pages show\'' -l slice -x -d 'A part of a tensor, such as 0,:,3:5; only its rows are read.'
complete -c tdbg -n '__tdbg_at \'inspect-pages show\'' -l ranks -l rank -x -d 'Only these ranks, such as 0,3-5.'
complete -c tdbg -n '__tdbg_at \'inspect-pages show\'' -l steps -l step -x -d 'Only these steps, such as 100:200,500.'
complete -c tdbg -n '__tdbg_at \'inspect-pages show\'' -l epochs -l epoch -x -d 'Only these epochs, such as 0:2.'
complete -c tdbg -n '__tdbg_at \'inspect-pages show\'' -l phase -x -d 'Only this phase, such as train or eval.'
complete -c tdbg -n '__tdbg_at \'inspect-pages show\'' -l nth -x -d 'The N-th of several datapoints with this key, from 1.'
complete -c tdbg -n '__tdbg_at \'inspect-pages show\'' -l image -x -a '(__tdbg_IMAGE)' -d 'How pictures are sent to the terminal; auto asks its environment. [default: auto]'
complete -c tdbg -n '__tdbg_at \'inspect-pages show\'' -l json -d 'Print one JSON document.'
complete -c tdbg -n '__tdbg_at \'inspect-pages show\'' -l color -x -a '(__tdbg_WHEN)' -d 'Colour the output: auto, always or never; always formats a pipe like a terminal. [default: auto]'
complete -c tdbg -n '__tdbg_at \'inspect-pages show\'' -s h -l help -d 'Show this page and exit.'
complete -c tdbg -n '__tdbg_at \'inspect-pages show\'' -r -F

# tdbg inspect-pages stats
complete -c tdbg -n '__tdbg_at \'inspect-pages stats\'' -l layer -x -d 'Only layers of this pattern, or below this name; repeatable.'
complete -c tdbg -n '__tdbg_at \'inspect-pages stats\'' -l group-by -x -d 'Group by rank, step, epoch, phase, a number captured with each datapoint, or a step metric such as loss.'
complete -c tdbg -n '__tdbg_at \'inspect-pages stats\'' -l scores -r -F -d 'Group by the scores of a CSV file (key,score) or JSON Lines file.'
complete -c tdbg -n '__tdbg_at \'inspect-pages stats\'' -l ranks -l rank -x -d 'Only these ranks, such as 0,3-5.'
complete -c tdbg -n '__tdbg_at \'inspect-pages stats\'' -l steps -l step -x -d 'Only these steps, such as 100:200,500.'
complete -c tdbg -n '__tdbg_at \'inspect-pages stats\'' -l epochs -l epoch -x -d 'Only these epochs, such as 0:2.'
complete -c tdbg -n '__tdbg_at \'inspect-pages stats\'' -l phase -x -d 'Only this phase, such as train or eval.'
complete -c tdbg -n '__tdbg_at \'inspect-pages stats\'' -l json -d 'Print one JSON document.'
complete -c tdbg -n '__tdbg_at \'inspect-pages stats\'' -l color -x -a '(__tdbg_WHEN)' -d 'Colour the output: auto, always or never; always formats a pipe like a terminal. [default: auto]'
complete -c tdbg -n '__tdbg_at \'inspect-pages stats\'' -s h -l help -d 'Show this page and exit.'
complete -c tdbg -n '__tdbg_at \'inspect-pages stats\'' -r -F

# tdbg inspect-pages find
complete -c tdbg -n '__tdbg_at \'inspect-pages find\'' -l sort -x -d 'Sort by this figure, or by a sum of several, the largest first.'
complete -c tdbg -n '__tdbg_at \'inspect-pages find\'' -l limit -x -d 'Print at most N; 0: all. [default: 0]'
complete -c tdbg -n '__tdbg_at \'inspect-pages find\'' -l layer -x -d 'Only layers of this pattern, or below this name; repeatable.'
complete -c tdbg -n '__tdbg_at \'inspect-pages find\'' -l group-by -x -d 'Group by rank, step, epoch, phase, a number captured with each datapoint, or a step metric such as loss.'
complete -c tdbg -n '__tdbg_at \'inspect-pages find\'' -l scores -r -F -d 'Group by the scores of a CSV file (key,score) or JSON Lines file.'
complete -c tdbg -n '__tdbg_at \'inspect-pages find\'' -l ranks -l rank -x -d 'Only these ranks, such as 0,3-5.'
complete -c tdbg -n '__tdbg_at \'inspect-pages find\'' -l steps -l step -x -d 'Only these steps, such as 100:200,500.'
complete -c tdbg -n '__tdbg_at \'inspect-pages find\'' -l epochs -l epoch -x -d 'Only these epochs, such as 0:2.'
complete -c tdbg -n '__tdbg_at \'inspect-pages find\'' -l phase -x -d 'Only this phase, such as train or eval.'
complete -c tdbg -n '__tdbg_at \'inspect-pages find\'' -l json -d 'Print one JSON document.'
complete -c tdbg -n '__tdbg_at \'inspect-pages find\'' -l color -x -a '(__tdbg_WHEN)' -d 'Colour the output: auto, always or never; always formats a pipe like a terminal. [default: auto]'
complete -c tdbg -n '__tdbg_at \'inspect-pages find\'' -s h -l help -d 'Show this page and exit.'
complete -c tdbg -n '__tdbg_at \'inspect-pages find\'' -r -F

# tdbg inspect-pages diff
complete -c tdbg -n '__tdbg_at \'inspect-pages diff\'' -l layer -x -d 'Only paths like this glob; repeatable.'
complete -c tdbg -n '__tdbg_at \'inspect-pages diff\'' -l tolerance -x -d 'Allow this relative error, whatever the type: 1e-3.'
complete -c tdbg -n '__tdbg_at \'inspect-pages diff\'' -l pair-by -x -d 'Pair datapoints by key or by order. [default: key]'
complete -c tdbg -n '__tdbg_at \'inspect-pages diff\'' -l epochs -x -d 'Compare these two epochs: 1,2; or one epoch of two runs.'
complete -c tdbg -n '__tdbg_at \'inspect-pages diff\'' -l ranks -x -d 'Compare these two ranks: 0,1; or one rank of two runs.'
complete -c tdbg -n '__tdbg_at \'inspect-pages diff\'' -l top -x -d 'Rows in the table of the worst tensors. [default: 10]'
complete -c tdbg -n '__tdbg_at \'inspect-pages diff\'' -l json -d 'Print one JSON document.'
complete -c tdbg -n '__tdbg_at \'inspect-pages diff\'' -l color -x -a '(__tdbg_WHEN)' -d 'Colour the output: auto, always or never; always formats a pipe like a terminal. [default: auto]'
complete -c tdbg -n '__tdbg_at \'inspect-pages diff\'' -s h -l help -d 'Show this page and exit.'
complete -c tdbg -n '__tdbg_at \'inspect-pages diff\'' -r -F

# tdbg inspect-pages export
complete -c tdbg -n '__tdbg_at \'inspect-pages export\'' -s o -l output -r -F -d 'The file or folder to write.'
complete -c tdbg -n '__tdbg_at \'inspect-pages export\'' -l layer -x -d 'Only tensors whose path matches this glob; repeatable.'
complete -c tdbg -n '__tdbg_at \'inspect-pages export\'' -l keys -l key -x -d 'Only datapoints with these keys, such as 17,18; repeatable.'
complete -c tdbg -n '__tdbg_at \'inspect-pages export\'' -l ranks -l rank -x -d 'Only these ranks, such as 0,3-5.'
complete -c tdbg -n '__tdbg_at \'inspect-pages export\'' -l steps -l step -x -d 'Only these steps, such as 100:200,500.'
complete -c tdbg -n '__tdbg_at \'inspect-pages export\'' -l epochs -l epoch -x -d 'Only these epochs, such as 0:2.'
complete -c tdbg -n '__tdbg_at \'inspect-pages export\'' -l phase -x -d 'Only this phase, such as train or eval.'
complete -c tdbg -n '__tdbg_at \'inspect-pages export\'' -l force -d 'Overwrite files that are there.'
complete -c tdbg -n '__tdbg_at \'inspect-pages export\'' -l json -d 'Print what was written as one JSON document.'
complete -c tdbg -n '__tdbg_at \'inspect-pages export\'' -l color -x -a '(__tdbg_WHEN)' -d 'Colour the output: auto, always or never; always formats a pipe like a terminal. [default: auto]'
complete -c tdbg -n '__tdbg_at \'inspect-pages export\'' -s h -l help -d 'Show this page and exit.'
complete -c tdbg -n '__tdbg_at \'inspect-pages export\'' -r -F

# tdbg inspect-pages html
complete -c tdbg -n '__tdbg_at \'inspect-pages html\'' -s o -l output -r -F -d 'The file to write.'
complete -c tdbg -n '__tdbg_at \'inspect-pages html\'' -l layer -x -d 'Only tensors whose path matches this glob; repeatable.'
complete -c tdbg -n '__tdbg_at \'inspect-pages html\'' -l keys -l key -x -d 'Only datapoints with these keys, such as 17,18; repeatable.'
complete -c tdbg -n '__tdbg_at \'inspect-pages html\'' -l ranks -l rank -x -d 'Only these ranks, such as 0,3-5.'
complete -c tdbg -n '__tdbg_at \'inspect-pages html\'' -l steps -l step -x -d 'Only these steps, such as 100:200,500.'
complete -c tdbg -n '__tdbg_at \'inspect-pages html\'' -l epochs -l epoch -x -d 'Only these epochs, such as 0:2.'
complete -c tdbg -n '__tdbg_at \'inspect-pages html\'' -l phase -x -d 'Only this phase, such as train or eval.'
complete -c tdbg -n '__tdbg_at \'inspect-pages html\'' -l limit -x -d 'At most N datapoints. [default: 50]'
complete -c tdbg -n '__tdbg_at \'inspect-pages html\'' -l size -x -d 'Values that the file may hold, before they become text. [default: 24MB]'
complete -c tdbg -n '__tdbg_at \'inspect-pages html\'' -l force -d 'Overwrite a file that is there.'
complete -c tdbg -n '__tdbg_at \'inspect-pages html\'' -l json -d 'Print what was written as one JSON document.'
complete -c tdbg -n '__tdbg_at \'inspect-pages html\'' -l color -x -a '(__tdbg_WHEN)' -d 'Colour the output: auto, always or never; always formats a pipe like a terminal. [default: auto]'
complete -c tdbg -n '__tdbg_at \'inspect-pages html\'' -s h -l help -d 'Show this page and exit.'
complete -c tdbg -n '__tdbg_at \'inspect-pages html\'' -r -F

# tdbg inspect-pages verify
complete -c tdbg -n '__tdbg_at \'inspect-pages verify\'' -l json -d 'Print one JSON document.'
complete -c tdbg -n '__tdbg_at \'inspect-pages verify\'' -l color -x -a '(__tdbg_WHEN)' -d 'Colour the output: auto, always or never; always formats a pipe like a terminal. [default: auto]'
complete -c tdbg -n '__tdbg_at \'inspect-pages verify\'' -s h -l help -d 'Show this page and exit.'
complete -c tdbg -n '__tdbg_at \'inspect-pages verify\'' -r -F

# tdbg inspect-pages recover
complete -c tdbg -n '__tdbg_at \'inspect-pages recover\'' -l ignore-live-writer -d 'Recover even if the writing process may still run, for example on another host.'
complete -c tdbg -n '__tdbg_at \'inspect-pages recover\'' -l json -d 'Print one JSON document.'
complete -c tdbg -n '__tdbg_at \'inspect-pages recover\'' -l color -x -a '(__tdbg_WHEN)' -d 'Colour the output: auto, always or never; always formats a pipe like a terminal. [default: auto]'
complete -c tdbg -n '__tdbg_at \'inspect-pages recover\'' -s h -l help -d 'Show this page and exit.'
complete -c tdbg -n '__tdbg_at \'inspect-pages recover\'' -r -F

# tdbg inspect-pages convert
complete -c tdbg -n '__tdbg_at \'inspect-pages convert\'' -s o -l output -x -a '(__fish_complete_directories)' -d 'The folder to write; it must be new or empty.'
complete -c tdbg -n '__tdbg_at \'inspect-pages convert\'' -l page-size -x -d 'Size of a page. [default: 100MB]'
complete -c tdbg -n '__tdbg_at \'inspect-pages convert\'' -l json -d 'Print what was done as one JSON document.'
complete -c tdbg -n '__tdbg_at \'inspect-pages convert\'' -l color -x -a '(__tdbg_WHEN)' -d 'Colour the output: auto, always or never; always formats a pipe like a terminal. [default: auto]'
complete -c tdbg -n '__tdbg_at \'inspect-pages convert\'' -s h -l help -d 'Show this page and exit.'
complete -c tdbg -n '__tdbg_at \'inspect-pages convert\'' -r -F

# tdbg inspect-pages upload
complete -c tdbg -n '__tdbg_at \'inspect-pages upload\'' -l json -d 'Print what was copied as one JSON document.'
complete -c tdbg -n '__tdbg_at \'inspect-pages upload\'' -l color -x -a '(__tdbg_WHEN)' -d 'Colour the output: auto, always or never; always formats a pipe like a terminal. [default: auto]'
complete -c tdbg -n '__tdbg_at \'inspect-pages upload\'' -s h -l help -d 'Show this page and exit.'
complete -c tdbg -n '__tdbg_at \'inspect-pages upload\'' -r -F

# tdbg trace
complete -c tdbg -n '__tdbg_at \'trace\'' -a show -d 'Show where the time and memory of a step went.'
complete -c tdbg -n '__tdbg_at \'trace\'' -a advise -d 'Advise how to make a step shorter, with the evidence.'
complete -c tdbg -n '__tdbg_at \'trace\'' -a flame -d 'Show what called what, and for how long: a flame graph in text.'
complete -c tdbg -n '__tdbg_at \'trace\'' -a compare -d 'Compare the steps of two runs: slower or not, and what changed.'
complete -c tdbg -n '__tdbg_at \'trace\'' -a slice -d 'Write a few steps of a few ranks as one small trace.'
complete -c tdbg -n '__tdbg_at \'trace\'' -s h -l help -d 'Show this page and exit.'

# tdbg trace show
complete -c tdbg -n '__tdbg_at \'trace show\'' -l ranks -l rank -x -d 'Only these ranks, such as 0,3-5.'
complete -c tdbg -n '__tdbg_at \'trace show\'' -l windows -x -d 'Which windows of a rank to read: last or all. [default: last]'
complete -c tdbg -n '__tdbg_at \'trace show\'' -l top -x -d 'Lines of each table. [default: 10]'
complete -c tdbg -n '__tdbg_at \'trace show\'' -l shapes -d 'Separate calls of an operator by their input shapes.'
complete -c tdbg -n '__tdbg_at \'trace show\'' -l html -r -F -d 'Write it as one HTML file, with graphs, that opens without a network.'
complete -c tdbg -n '__tdbg_at \'trace show\'' -l force -d 'Overwrite a file that is there.'
complete -c tdbg -n '__tdbg_at \'trace show\'' -l perfetto -r -F -d 'Write the steps shown to a small trace too, for ui.perfetto.dev.'
complete -c tdbg -n '__tdbg_at \'trace show\'' -l json -d 'Print one JSON document.'
complete -c tdbg -n '__tdbg_at \'trace show\'' -l color -x -a '(__tdbg_WHEN)' -d 'Colour the output: auto, always or never; always formats a pipe like a terminal. [default: auto]'
complete -c tdbg -n '__tdbg_at \'trace show\'' -s h -l help -d 'Show this page and exit.'
complete -c tdbg -n '__tdbg_at \'trace show\'' -r -F

# tdbg trace advise
complete -c tdbg -n '__tdbg_at \'trace advise\'' -l ranks -l rank -x -d 'Only these ranks, such as 0,3-5.'
complete -c tdbg -n '__tdbg_at \'trace advise\'' -l windows -x -d 'Which windows of a rank to read: last or all. [default: last]'
complete -c tdbg -n '__tdbg_at \'trace advise\'' -l threshold -x -d 'A bound of a rule, as NAME=VALUE; repeatable.'
complete -c tdbg -n '__tdbg_at \'trace advise\'' -l fail-on -x -d 'Exit 1 on advice of this severity or worse: notice, warning, critical.'
complete -c tdbg -n '__tdbg_at \'trace advise\'' -l json -d 'Print one JSON document.'
complete -c tdbg -n '__tdbg_at \'trace advise\'' -l color -x -a '(__tdbg_WHEN)' -d 'Colour the output: auto, always or never; always formats a pipe like a terminal. [default: auto]'
complete -c tdbg -n '__tdbg_at \'trace advise\'' -s h -l help -d 'Show this page and exit.'
complete -c tdbg -n '__tdbg_at \'trace advise\'' -r -F

# tdbg trace flame
complete -c tdbg -n '__tdbg_at \'trace flame\'' -l ranks -l rank -x -d 'Only these ranks, such as 0,3-5.'
complete -c tdbg -n '__tdbg_at \'trace flame\'' -l windows -x -d 'Which windows of a rank to read: last or all. [default: last]'
complete -c tdbg -n '__tdbg_at \'trace flame\'' -l by -x -d 'By stack, module or operator; the first of them that the trace has if left out.'
complete -c tdbg -n '__tdbg_at \'trace flame\'' -l top -x -d 'Print N rows, those with the most time; 40 if left out, all with --folded.'
complete -c tdbg -n '__tdbg_at \'trace flame\'' -l depth -x -d 'Print N levels; all if left out.'
complete -c tdbg -n '__tdbg_at \'trace flame\'' -l folded -d 'Print one line per stack with its self time in us, as flame graph tools read it.'
complete -c tdbg -n '__tdbg_at \'trace flame\'' -l json -d 'Print one JSON document.'
complete -c tdbg -n '__tdbg_at \'trace flame\'' -l color -x -a '(__tdbg_WHEN)' -d 'Colour the output: auto, always or never; always formats a pipe like a terminal. [default: auto]'
complete -c tdbg -n '__tdbg_at \'trace flame\'' -s h -l help -d 'Show this page and exit.'
complete -c tdbg -n '__tdbg_at \'trace flame\'' -r -F

# tdbg trace compare
complete -c tdbg -n '__tdbg_at \'trace compare\'' -l tolerance -x -d 'How much slower B may be, such as 0.1 or 10%; 0.05 if left out.'
complete -c tdbg -n '__tdbg_at \'trace compare\'' -l save -r -F -d 'Do not compare: save the given runs as a baseline.'
complete -c tdbg -n '__tdbg_at \'trace compare\'' -l ranks -l rank -x -d 'Only these ranks, such as 0,3-5.'
complete -c tdbg -n '__tdbg_at \'trace compare\'' -l windows -x -d 'Of several windows of a rank all, or the last. [default: all]'
complete -c tdbg -n '__tdbg_at \'trace compare\'' -l top -x -d 'Lines of each table. [default: 10]'
complete -c tdbg -n '__tdbg_at \'trace compare\'' -l json -d 'Print one JSON document.'
complete -c tdbg -n '__tdbg_at \'trace compare\'' -l color -x -a '(__tdbg_WHEN)' -d 'Colour the output: auto, always or never; always formats a pipe like a terminal. [default: auto]'
complete -c tdbg -n '__tdbg_at \'trace compare\'' -s h -l help -d 'Show this page and exit.'
complete -c tdbg -n '__tdbg_at \'trace compare\'' -r -F

# tdbg trace slice
complete -c tdbg -n '__tdbg_at \'trace slice\'' -s o -l output -r -F -d 'The file to write; packed if its name ends with .gz.'
complete -c tdbg -n '__tdbg_at \'trace slice\'' -l steps -l step -x -d 'Only these steps, such as 3 or 100:102; all if left out.'
complete -c tdbg -n '__tdbg_at \'trace slice\'' -l force -d 'Overwrite a file that is there.'
complete -c tdbg -n '__tdbg_at \'trace slice\'' -l ranks -l rank -x -d 'Only these ranks, such as 0,3-5.'
complete -c tdbg -n '__tdbg_at \'trace slice\'' -l windows -x -d 'Look in the last window of a rank, or in all; all if --steps is given.'
complete -c tdbg -n '__tdbg_at \'trace slice\'' -l color -x -a '(__tdbg_WHEN)' -d 'Colour the output: auto, always or never; always formats a pipe like a terminal. [default: auto]'
complete -c tdbg -n '__tdbg_at \'trace slice\'' -s h -l help -d 'Show this page and exit.'
complete -c tdbg -n '__tdbg_at \'trace slice\'' -r -F

# tdbg metrics
complete -c tdbg -n '__tdbg_at \'metrics\'' -a show -d 'Show the latest and the best of every metric, and its course.'
complete -c tdbg -n '__tdbg_at \'metrics\'' -a dump -d 'Write the state of the metrics at a step, or every value, as JSON, CSV or Parquet.'
complete -c tdbg -n '__tdbg_at \'metrics\'' -a plot -d 'Plot metrics over steps, in the terminal or as an HTML page.'
complete -c tdbg -n '__tdbg_at \'metrics\'' -a compare -d 'Compare the metrics of runs: best and last, and the first step where series diverge.'
complete -c tdbg -n '__tdbg_at \'metrics\'' -a sanity -d 'Say what is wrong with the metrics of a run.'
complete -c tdbg -n '__tdbg_at \'metrics\'' -s h -l help -d 'Show this page and exit.'

# tdbg metrics show
complete -c tdbg -n '__tdbg_at \'metrics show\'' -l ranks -l rank -x -d 'Only these ranks, such as 0,3-5.'
complete -c tdbg -n '__tdbg_at \'metrics show\'' -s k -l key -x -d 'Only keys such as \'val/*\'; repeatable.'
complete -c tdbg -n '__tdbg_at \'metrics show\'' -l json -d 'Print one JSON document, with every rank.'
complete -c tdbg -n '__tdbg_at \'metrics show\'' -l color -x -a '(__tdbg_WHEN)' -d 'Colour the output: auto, always or never; always formats a pipe like a terminal. [default: auto]'
complete -c tdbg -n '__tdbg_at \'metrics show\'' -s h -l help -d 'Show this page and exit.'
complete -c tdbg -n '__tdbg_at \'metrics show\'' -r -F

# tdbg metrics dump
complete -c tdbg -n '__tdbg_at \'metrics dump\'' -l ranks -l rank -x -d 'Only these ranks, such as 0,3-5.'
complete -c tdbg -n '__tdbg_at \'metrics dump\'' -s k -l key -x -d 'Only keys such as \'val/*\'; repeatable.'
complete -c tdbg -n '__tdbg_at \'metrics dump\'' -l after-step -x -d 'The state as it was after this step; that of the end if left out.'
complete -c tdbg -n '__tdbg_at \'metrics dump\'' -l phase -x -d 'Only rows of this phase, such as val.'
complete -c tdbg -n '__tdbg_at \'metrics dump\'' -l series -d 'Every value, not the state.'
complete -c tdbg -n '__tdbg_at \'metrics dump\'' -l states -d 'The states that DUMP_METRICS or VALIDATION_METRICS kept, as JSON.'
complete -c tdbg -n '__tdbg_at \'metrics dump\'' -l format -x -d 'json, csv or parquet; json if left out.'
complete -c tdbg -n '__tdbg_at \'metrics dump\'' -s o -l out -r -F -d 'Write to this file; stdout if left out.'
complete -c tdbg -n '__tdbg_at \'metrics dump\'' -l force -d 'With --out: overwrite a file that is there.'
complete -c tdbg -n '__tdbg_at \'metrics dump\'' -l json -d 'The same as --format json.'
complete -c tdbg -n '__tdbg_at \'metrics dump\'' -l color -x -a '(__tdbg_WHEN)' -d 'Colour the output: auto, always or never; always formats a pipe like a terminal. [default: auto]'
complete -c tdbg -n '__tdbg_at \'metrics dump\'' -s h -l help -d 'Show this page and exit.'
complete -c tdbg -n '__tdbg_at \'metrics dump\'' -r -F

# tdbg metrics plot
complete -c tdbg -n '__tdbg_at \'metrics plot\'' -l ranks -l rank -x -d 'Only these ranks, such as 0,3-5.'
complete -c tdbg -n '__tdbg_at \'metrics plot\'' -l smooth -x -d 'Weight of the earlier values, from 0 to less than 1, such as 0.9.'
complete -c tdbg -n '__tdbg_at \'metrics plot\'' -l html -r -F -d 'Write one HTML file with graphs, that opens without a network.'
complete -c tdbg -n '__tdbg_at \'metrics plot\'' -l force -d 'With --html: overwrite a file that is there.'
complete -c tdbg -n '__tdbg_at \'metrics plot\'' -l height -x -d 'Lines of a graph in the terminal. [default: 12]'
complete -c tdbg -n '__tdbg_at \'metrics plot\'' -l json -d 'Print the points as one JSON document.'
complete -c tdbg -n '__tdbg_at \'metrics plot\'' -l color -x -a '(__tdbg_WHEN)' -d 'Colour the output: auto, always or never; always formats a pipe like a terminal. [default: auto]'
complete -c tdbg -n '__tdbg_at \'metrics plot\'' -s h -l help -d 'Show this page and exit.'
complete -c tdbg -n '__tdbg_at \'metrics plot\'' -a '(__tdbg_runs)'

# tdbg metrics compare
complete -c tdbg -n '__tdbg_at \'metrics compare\'' -l ranks -l rank -x -d 'Only these ranks, such as 0,3-5.'
complete -c tdbg -n '__tdbg_at \'metrics compare\'' -s k -l key -x -d 'Only keys such as \'val/*\'; repeatable.'
complete -c tdbg -n '__tdbg_at \'metrics compare\'' -l tolerance -x -d 'A share such as 0.01 or 1%, or spread; 1e-6 if left out.'
complete -c tdbg -n '__tdbg_at \'metrics compare\'' -l json -d 'Print one JSON document.'
complete -c tdbg -n '__tdbg_at \'metrics compare\'' -l color -x -a '(__tdbg_WHEN)' -d 'Colour the output: auto, always or never; always formats a pipe like a terminal. [default: auto]'
complete -c tdbg -n '__tdbg_at \'metrics compare\'' -s h -l help -d 'Show this page and exit.'
complete -c tdbg -n '__tdbg_at \'metrics compare\'' -r -F

# tdbg metrics sanity
complete -c tdbg -n '__tdbg_at \'metrics sanity\'' -l ranks -l rank -x -d 'Only these ranks, such as 0,3-5.'
complete -c tdbg -n '__tdbg_at \'metrics sanity\'' -l fail-on -x -a '(__tdbg_SEVERITY)' -d 'Exit with 1 if there is a finding of this severity or worse.'
complete -c tdbg -n '__tdbg_at \'metrics sanity\'' -l json -d 'Print one JSON document.'
complete -c tdbg -n '__tdbg_at \'metrics sanity\'' -l color -x -a '(__tdbg_WHEN)' -d 'Colour the output: auto, always or never; always formats a pipe like a terminal. [default: auto]'
complete -c tdbg -n '__tdbg_at \'metrics sanity\'' -s h -l help -d 'Show this page and exit.'
complete -c tdbg -n '__tdbg_at \'metrics sanity\'' -r -F

# tdbg flags
complete -c tdbg -n '__tdbg_at \'flags\'' -a list -d 'List every flag with its group, short names and summary.'
complete -c tdbg -n '__tdbg_at \'flags\'' -a show -d 'Show one flag: when to use it, its tag, short names and presets.'
complete -c tdbg -n '__tdbg_at \'flags\'' -a scan -d 'Map the flags of a program to the log lines they open.'
complete -c tdbg -n '__tdbg_at \'flags\'' -a doctor -d 'Show what the flags of a run really did.'
complete -c tdbg -n '__tdbg_at \'flags\'' -s h -l help -d 'Show this page and exit.'

# tdbg flags list
complete -c tdbg -n '__tdbg_at \'flags list\'' -l json -d 'Print one JSON document.'
complete -c tdbg -n '__tdbg_at \'flags list\'' -l color -x -a '(__tdbg_WHEN)' -d 'Colour the output: auto, always or never; always formats a pipe like a terminal. [default: auto]'
complete -c tdbg -n '__tdbg_at \'flags list\'' -s h -l help -d 'Show this page and exit.'

# tdbg flags show
complete -c tdbg -n '__tdbg_at \'flags show\'' -l json -d 'Print one JSON document.'
complete -c tdbg -n '__tdbg_at \'flags show\'' -l color -x -a '(__tdbg_WHEN)' -d 'Colour the output: auto, always or never; always formats a pipe like a terminal. [default: auto]'
complete -c tdbg -n '__tdbg_at \'flags show\'' -s h -l help -d 'Show this page and exit.'
complete -c tdbg -n '__tdbg_at \'flags show\'' -a '(__tdbg_FLAG)'

# tdbg flags scan
complete -c tdbg -n '__tdbg_at \'flags scan\'' -s o -l output -r -F -d 'Write the map there instead of to stdout (-). [default: -]'
complete -c tdbg -n '__tdbg_at \'flags scan\'' -l function -x -d 'A function of the program that tests a flag given by name.'
complete -c tdbg -n '__tdbg_at \'flags scan\'' -l color -x -a '(__tdbg_WHEN)' -d 'Colour the output: auto, always or never; always formats a pipe like a terminal. [default: auto]'
complete -c tdbg -n '__tdbg_at \'flags scan\'' -s h -l help -d 'Show this page and exit.'
complete -c tdbg -n '__tdbg_at \'flags scan\'' -a '(__fish_complete_directories)'

# tdbg flags doctor
complete -c tdbg -n '__tdbg_at \'flags doctor\'' -l json -d 'Print one JSON document.'
complete -c tdbg -n '__tdbg_at \'flags doctor\'' -l color -x -a '(__tdbg_WHEN)' -d 'Colour the output: auto, always or never; always formats a pipe like a terminal. [default: auto]'
complete -c tdbg -n '__tdbg_at \'flags doctor\'' -s h -l help -d 'Show this page and exit.'
complete -c tdbg -n '__tdbg_at \'flags doctor\'' -a '(__tdbg_runs)'

# tdbg explain
complete -c tdbg -n '__tdbg_at \'explain\'' -l json -d 'Print one JSON document.'
complete -c tdbg -n '__tdbg_at \'explain\'' -l color -x -a '(__tdbg_WHEN)' -d 'Colour the output: auto, always or never; always formats a pipe like a terminal. [default: auto]'
complete -c tdbg -n '__tdbg_at \'explain\'' -s h -l help -d 'Show this page and exit.'
complete -c tdbg -n '__tdbg_at \'explain\'' -a '(__tdbg_CODE) (__tdbg_ADVICE)'

# tdbg doctor
complete -c tdbg -n '__tdbg_at \'doctor\'' -l json -d 'Print one JSON document.'
complete -c tdbg -n '__tdbg_at \'doctor\'' -l color -x -a '(__tdbg_WHEN)' -d 'Colour the output: auto, always or never; always formats a pipe like a terminal. [default: auto]'
complete -c tdbg -n '__tdbg_at \'doctor\'' -s h -l help -d 'Show this page and exit.'

# tdbg demo
complete -c tdbg -n '__tdbg_at \'demo\'' -l fault -x -a '(__tdbg_FAULT)' -d 'The fault to plant, at three fifths of the steps. [default: none]'
complete -c tdbg -n '__tdbg_at \'demo\'' -l train-steps -x -d 'Optimizer steps. [default: 200]'
complete -c tdbg -n '__tdbg_at \'demo\'' -l seed -x -d 'Seed of weights, batches and dropout. [default: 0]'
complete -c tdbg -n '__tdbg_at \'demo\'' -l run-dir -x -a '(__fish_complete_directories)' -d 'Where the run is kept; must not hold another run.'
complete -c tdbg -n '__tdbg_at \'demo\'' -l color -x -a '(__tdbg_WHEN)' -d 'Colour the output: auto, always or never; always formats a pipe like a terminal. [default: auto]'
complete -c tdbg -n '__tdbg_at \'demo\'' -s h -l help -d 'Show this page and exit.'

# tdbg hook
complete -c tdbg -n '__tdbg_at \'hook\'' -a install -d 'Install the hook into an environment\'s site-packages.'
complete -c tdbg -n '__tdbg_at \'hook\'' -a remove -d 'Remove the hook; exit code 1 if there was none.'
complete -c tdbg -n '__tdbg_at \'hook\'' -s h -l help -d 'Show this page and exit.'

# tdbg hook install
complete -c tdbg -n '__tdbg_at \'hook install\'' -l python -r -F -d 'Interpreter of the environment; tdbg\'s own if left out.'
complete -c tdbg -n '__tdbg_at \'hook install\'' -l color -x -a '(__tdbg_WHEN)' -d 'Colour the output: auto, always or never; always formats a pipe like a terminal. [default: auto]'
complete -c tdbg -n '__tdbg_at \'hook install\'' -s h -l help -d 'Show this page and exit.'

# tdbg hook remove
complete -c tdbg -n '__tdbg_at \'hook remove\'' -l python -r -F -d 'Interpreter of the environment; tdbg\'s own if left out.'
complete -c tdbg -n '__tdbg_at \'hook remove\'' -l color -x -a '(__tdbg_WHEN)' -d 'Colour the output: auto, always or never; always formats a pipe like a terminal. [default: auto]'
complete -c tdbg -n '__tdbg_at \'hook remove\'' -s h -l help -d 'Show this page and exit.'

# tdbg completions
complete -c tdbg -n '__tdbg_at \'completions\'' -a install -d 'Install the completions for your shell; prints the files it wrote.'
complete -c tdbg -n '__tdbg_at \'completions\'' -a remove -d 'Remove the completions; exit code 1 if there were none.'
complete -c tdbg -n '__tdbg_at \'completions\'' -s h -l help -d 'Show this page and exit.'

# tdbg completions install
complete -c tdbg -n '__tdbg_at \'completions install\'' -l shell -x -d 'bash, zsh or fish; that of $SHELL if left out.'
complete -c tdbg -n '__tdbg_at \'completions install\'' -l color -x -a '(__tdbg_WHEN)' -d 'Colour the output: auto, always or never; always formats a pipe like a terminal. [default: auto]'
complete -c tdbg -n '__tdbg_at \'completions install\'' -s h -l help -d 'Show this page and exit.'

# tdbg completions remove
complete -c tdbg -n '__tdbg_at \'completions remove\'' -l shell -x -d 'bash, zsh or fish; that of $SHELL if left out.'
complete -c tdbg -n '__tdbg_at \'completions remove\'' -l color -x -a '(__tdbg_WHEN)' -d 'Colour the output: auto, always or never; always formats a pipe like a terminal. [default: auto]'
complete -c tdbg -n '__tdbg_at \'completions remove\'' -s h -l help -d 'Show this page and exit.'

# tdbg trust
complete -c tdbg -n '__tdbg_at \'trust\'' -l remove -d 'Withdraw what was allowed; exit code 1 if nothing was.'
complete -c tdbg -n '__tdbg_at \'trust\'' -l list -d 'Print the allowed folders; also without DIR.'
complete -c tdbg -n '__tdbg_at \'trust\'' -l json -d 'Print one JSON document.'
complete -c tdbg -n '__tdbg_at \'trust\'' -l color -x -a '(__tdbg_WHEN)' -d 'Colour the output: auto, always or never; always formats a pipe like a terminal. [default: auto]'
complete -c tdbg -n '__tdbg_at \'trust\'' -s h -l help -d 'Show this page and exit.'
complete -c tdbg -n '__tdbg_at \'trust\'' -a '(__fish_complete_directories)'
