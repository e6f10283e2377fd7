{{- /* Does the API server have ValidatingAdmissionPolicies (stable since 1.30)? Its tokens name their pod's node since then, too. */ -}}
{{- define "gpuslice.admissionPolicies" -}}
{{- if semverCompare ">=1.30.0-0" .Capabilities.KubeVersion.Version }}true{{ end }}
{{- end }}

{{- /* The user name of a component's account: called with (list . "component"). */ -}}
{{- define "gpuslice.user" -}}
{{- $root := index . 0 -}}
system:serviceaccount:{{ $root.Release.Namespace }}:{{ include "gpuslice.fullname" $root }}-{{ index . 1 }}
{{- end }}

{{- /* Is it one of these accounts of ours, kube-scheduler, or something of kube-system? Called with (list . "component" ...). */ -}}
{{- define "gpuslice.trusted" -}}
{{- $root := index . 0 -}}
{{- $users := list -}}
{{- range rest . -}}
{{- $users = append $users (printf "'%s'" (include "gpuslice.user" (list $root .))) -}}
{{- end -}}
request.userInfo.username in [{{ join ", " $users }}, 'system:kube-scheduler'] ||
(has(request.userInfo.groups) && 'system:serviceaccounts:kube-system' in request.userInfo.groups)
{{- end }}

{{- /* A match condition. Kubelets write most, and nothing of ours; NodeRestriction keeps each to its own. */ -}}
{{- define "gpuslice.notByKubelet" -}}
- name: not-by-a-kubelet
  expression: "!(has(request.userInfo.groups) && 'system:nodes' in request.userInfo.groups)"
{{- end }}

{{- /* Variables: the annotations before and after, {} where there are none. */ -}}
{{- define "gpuslice.annotations" -}}
- name: oldAnnotations
  expression: "oldObject != null && has(oldObject.metadata.annotations) ? oldObject.metadata.annotations : {}"
- name: newAnnotations
  expression: "has(object.metadata.annotations) ? object.metadata.annotations : {}"
{{- end }}

{{- /* Variables: the labels before and after, and the keys of all other metadata that change. */ -}}
{{- define "gpuslice.metadata" -}}
- name: oldLabels
  expression: "oldObject != null && has(oldObject.metadata.labels) ? oldObject.metadata.labels : {}"
- name: newLabels
  expression: "has(object.metadata.labels) ? object.metadata.labels : {}"
- name: oldMetadata
  expression: "oldObject != null ? dyn(oldObject.metadata) : dyn(object.metadata)"
- name: newMetadata
  expression: dyn(object.metadata)
- name: metadata
  expression: >-
    (variables.oldMetadata.map(k, k) + variables.newMetadata.map(k, k)).filter(k,
    !(k in ['annotations', 'labels', 'managedFields', 'resourceVersion', 'generation']) &&
    variables.oldMetadata[?k] != variables.newMetadata[?k])
{{- end }}

{{- /*
Nothing but such keys k changes: called with (list "Annotations" "condition on k"). A tenant can give a pod tens of
thousands of annotations, and must not make this cost more than the API server pays for: so each is looked at once.
*/ -}}
{{- define "gpuslice.only" -}}
variables.new{{ index . 0 }}.all(k, (k in variables.old{{ index . 0 }} &&
variables.old{{ index . 0 }}[k] == variables.new{{ index . 0 }}[k]) || {{ index . 1 }}) &&
variables.old{{ index . 0 }}.all(k, k in variables.new{{ index . 0 }} || {{ index . 1 }})
{{- end }}

{{- /*
By annotation k of such a map a container runtime is told to bring in NVIDIA's devices; a bare name is a GPU to NVIDIA's
runtime. Called with "map".
*/ -}}
{{- define "gpuslice.namesDevices" -}}
(k.startsWith('cdi.k8s.io/') || k.contains('.cdi.k8s.io/')) &&
!{{ . }}[k].split(',').all(d, d.matches('^ *[^/= ]+/[^/= ]+=[^= ]+ *$') && !d.lowerAscii().contains('nvidia.com/'))
{{- end }}

{{- /* The binding that makes a policy count: called with (list . "policy"). */ -}}
{{- define "gpuslice.policyBinding" -}}
{{- $root := index . 0 -}}
{{- $name := printf "%s-%s" (include "gpuslice.fullname" $root) (index . 1) -}}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {{ $name }}
  labels:
    {{- include "gpuslice.labels" (list $root "policies") | nindent 4 }}
spec:
  policyName: {{ $name }}
  validationActions: [Deny]
{{- end }}
